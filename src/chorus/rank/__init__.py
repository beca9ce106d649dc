"""One rank: loads its part of the model, runs steps on it, owns its caches."""
