"""The rules of the board, pure: entries, policies, principals, the judge.

Nothing here does I/O, reads a clock, draws a random number or knows a framework. What decides takes values and returns
values; time comes in as `now`. Only the standard library and this package are imported.
"""
