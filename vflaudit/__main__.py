"""`python -m vflaudit` is the command line."""

from vflaudit.cli import main

main()
