"""`chorus top`: what a server does now, drawn anew every second."""
