"""`python -m slateboard.cli`: the same as `slate`."""

from slateboard.cli import main

if __name__ == "__main__":
    main()
