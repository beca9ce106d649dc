"""Addresses, cables and ports of this machine, and why a connection failed."""
