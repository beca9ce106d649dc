"""Models over the nodes of a cluster."""
