"""Which accelerator MLX computes on here, with which number type, and what it must find to be imported."""
