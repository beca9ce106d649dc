"""The process that every node runs: it starts and ends ranks for a coordinator."""
