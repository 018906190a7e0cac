"""Optimization: optimizers, learning rates, schedules, length of a run, moving averages."""
