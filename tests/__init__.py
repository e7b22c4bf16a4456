"""Slateboard's tests; README.md in this folder says where a test belongs."""
