"""The Python client: what it promises to the code that imports it."""
