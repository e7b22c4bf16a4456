"""The pure domain and other code without I/O; no server, no database."""
