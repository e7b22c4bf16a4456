"""Hypothesis rule machines: commits, clock, crashes and compaction against a small model."""
