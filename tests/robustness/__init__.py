"""Traffic under faults, a recorded history, and checks over it.

`model` is the history, `traffic` makes it, `faults` disturbs it, `validate` judges it. `make robustness` runs for minutes; a
short run with a printed seed is part of `make test`.
"""
