"""The protocols between processes, and the code that is generated from them."""
