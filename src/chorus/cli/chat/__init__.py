"""`chorus chat`: a conversation with a model in a terminal, or one question from a pipe."""
