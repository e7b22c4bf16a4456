"""Slateboard's Python client."""
