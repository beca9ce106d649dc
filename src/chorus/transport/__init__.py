"""How ranks exchange tensors; `catalog` says of every transport what it can do and what opens it."""
