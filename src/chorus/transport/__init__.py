"""How ranks exchange tensors."""
