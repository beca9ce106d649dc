"""`python -m chorus.cli` is the `chorus` command, for interpreters whose scripts are not on the path."""

from chorus.cli import main

main()
