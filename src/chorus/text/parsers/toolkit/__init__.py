"""What parsers and grammars of tool calls are made of."""
