"""Measurements; `make bench`. Ratios of one run, never asserts on time."""
