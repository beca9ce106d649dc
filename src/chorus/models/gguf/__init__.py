"""GGUF files, read and converted to the Hugging Face form."""
