"""Who holds what: model facts, costs, strategies, the planner. No process."""
