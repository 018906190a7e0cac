"""Strategies that place a model on the processes: one file per strategy, of its name, with a class ``Strategy``."""
