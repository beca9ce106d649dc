"""Models on Hugging Face: whole, or the part that one machine needs."""
