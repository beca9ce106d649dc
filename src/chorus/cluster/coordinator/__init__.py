"""The node that serves: who is there, who has which files, who does what."""
