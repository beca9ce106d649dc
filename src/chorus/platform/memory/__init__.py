"""How much memory there is for a model, who has booked it, and when freed memory goes back."""
