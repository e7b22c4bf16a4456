"""The demo as its users run it, and its parts that need a board."""
