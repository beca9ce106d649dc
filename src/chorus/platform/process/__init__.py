"""The life of a process: what it writes, how it shows that it lives, how it ends."""
