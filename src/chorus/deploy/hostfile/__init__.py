"""Models over the workers of a hostfile, each started by hand on its machine."""
