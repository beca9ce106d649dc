"""The HTTP front end: OpenAI's wire formats over the engine link. Imports no MLX."""
