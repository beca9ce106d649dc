"""From a conversation to the prompt that a model's template makes of it."""
