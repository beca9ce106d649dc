"""POST /v1/completions, OpenAI's older protocol for plain text."""
