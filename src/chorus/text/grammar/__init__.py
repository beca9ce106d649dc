"""Grammars live outside: each request's in a child process of its own, which may end without anybody else noticing."""
