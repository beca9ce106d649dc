"""A trace of all ranks of a model on one clock: who computes, who waits for whom, what travels."""
