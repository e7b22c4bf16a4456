"""One suite for every adapter of a port: the port's promises as sentences."""
