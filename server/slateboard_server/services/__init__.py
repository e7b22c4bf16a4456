"""Use cases: what a call means, in terms of the domain and the ports.

No gRPC, no SQL, no generated code. Each service takes a `Caller` (who the credential stands for) and domain values, and
gives domain values or raises `SlateboardError`. What a caller may see is decided in `scope.py`, below all of them.
"""
