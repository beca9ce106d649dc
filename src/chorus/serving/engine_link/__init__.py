"""The engine link as a front end has it: one session, how far requests are, what they await when the engine is lost."""
