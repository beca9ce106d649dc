"""The models of a front end: which there are, who owns them, and what the preparation of a request sees of one."""
