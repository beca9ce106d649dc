"""What starts processes and keeps them alive, here and on other machines."""
