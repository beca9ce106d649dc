"""A leader's life: its group forms, loads, warms up and serves, and forms again after a loss."""
