"""Machines that belong together: agents, a coordinator, model files between nodes, discovery, profiles."""
