"""Traffic and faults, a recorded history, and checks over it."""
