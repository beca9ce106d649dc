"""What every front end shares: from conversations to prompts, and text over the engine link."""
