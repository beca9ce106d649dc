"""Model files from node to node."""
