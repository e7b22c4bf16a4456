# Made from _async/__init__.py by tools/async_to_sync.py; do not edit.
"""The client: the source. `_sync` is made from it by tools/async_to_sync.py."""
