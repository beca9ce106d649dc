"""The page that a browser is shown: its files, and the one stream of what it draws."""
