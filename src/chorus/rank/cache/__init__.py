"""The keys, values and states of sequences, alone and in batches."""
