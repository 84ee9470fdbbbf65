"""`python -m cutwater` is the `cutwater` command."""

from cutwater.cli.main import main

main()
