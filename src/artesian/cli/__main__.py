"""`python -m artesian.cli`."""

from artesian.cli import main

main()
