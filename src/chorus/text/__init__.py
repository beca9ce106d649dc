"""Text and tokens: tokenizing, streaming detokenization, stop strings, parsers of answers, grammars."""
