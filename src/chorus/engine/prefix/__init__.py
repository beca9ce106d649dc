"""What is kept of earlier requests: a tree of token ids, and what lies on the ranks for it. Pure: no tensor, no MLX."""
