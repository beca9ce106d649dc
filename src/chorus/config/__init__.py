"""The one tree of settings, where they come from, and the forms that older projects gave them."""
