"""Slateboard's server: a shared, versioned blackboard for a team of agents.

The rooms, from the inside out: `domain` decides and touches nothing; `ports` says what it needs from the world;
`services` are the use cases; `storage` and the other adapters keep the ports' promises; `grpc_api` speaks to
clients; `app` wires them. Imports point inwards only, which `make check` holds.
"""
