"""The steps from an empty database to `schema.metadata`, run by Alembic when a server starts.

A new step: change `schema.py`, then write `versions/<number>_<what>.py` with explicit operations. A step that was released
is never changed. There is no way down: restore a backup.
"""
