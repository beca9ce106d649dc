"""Where files of ours lie, how they get to a disk whole, and how many may be open."""
