"""What is counted and measured: every metric declared once, counted where it happens, gathered in one place."""
