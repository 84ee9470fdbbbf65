"""`python -m cutwater` is the `cutwater` command."""

from cutwater.cli import main

main()
