"""What every front end shares: the link to the engine, and text over it. Imports no MLX."""
