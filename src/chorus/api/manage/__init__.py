"""What is asked of the server itself and not of a model: what is loaded, what is kept, what runs."""
