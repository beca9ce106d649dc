"""The HTTP front end: OpenAI's and Anthropic's protocols over the engine link."""
