# Made from aio/__init__.py by tools/async_to_sync.py; do not edit.
