"""A team of agents doing a real job over a board: a weekly report from two weeks of dirty order lines.

What decides here is pure and knows no board: `money`, `rows`, `orders`, `cleaning`, `aggregate`, `weekly`,
`charts`, `report`, `html_report` take values and return values (reading the file is the last section of
`orders`, printing the last of `report`). `summary` alone may talk to a network, and only where an endpoint
is configured.

Around it stands the team. `board_keys` says what stands where on the board; `worker` and `supervisor` are the two
kinds of agents, `follow` is how they wait, `story` tells what happens, `evidence` asks the board afterwards what it
did for them. `team` starts and ends the processes, `__main__` is the command. They use the public API of
`slateboard` and nothing else of this project.
"""
