"""A team of agents doing a real job over a board: a weekly report from two weeks of dirty order lines.

What decides here is pure and knows no board: `money`, `rows`, `orders`, `cleaning`, `aggregate`, `weekly`,
`charts`, `report`, `html_report` take values and return values (reading the file is the last section of
`orders`, printing the last of `report`). `summary` alone may talk to a network, and only where an endpoint
is configured.
"""
