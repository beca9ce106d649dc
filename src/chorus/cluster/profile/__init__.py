"""What a machine and its links can do, measured."""
