"""The async client: the source. `_sync` is made from it by tools/async_to_sync.py."""
