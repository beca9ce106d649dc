"""/v1/responses, OpenAI's newer protocol: items in, items out, earlier answers kept in memory."""
