"""What a client asks for, whichever protocol it came in: one form, with tools, sampling, grammars and limits."""
