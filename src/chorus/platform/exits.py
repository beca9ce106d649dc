"""Exit codes by which a process tells whoever started it what to do next."""

EXIT_RANK_LOST = 71
"""The group is broken: start all of it again."""
EXIT_LEADER_GONE = 75
"""A process belongs to one collective group for good: to follow another leader, it only must be started again."""
EXIT_CANNOT_START = 78
"""Another try would fail the same way: give up."""
