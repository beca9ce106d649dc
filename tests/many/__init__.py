"""Several models behind one address: swapped for want of memory, unloaded when idle, and what that costs."""
