"""The edge: gRPC in, services called, gRPC out. The only server code that sees generated code.

`calls` is what every call goes through (credential, errors, counters); `errors` turns a reason into a status; `shape`
refuses what no request can be; `read_*` turn requests into domain values, `write_*` domain values into replies; the
servicers (`boards`, `entries`, `watching`, `admin`, `sessions`, `provenance`) convert, call one service, convert back;
`server` puts them on a port.
"""
