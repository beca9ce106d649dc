"""The listening socket, and what stands around every request."""
