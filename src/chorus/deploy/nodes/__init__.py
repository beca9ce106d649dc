"""A model over the nodes of a cluster."""
