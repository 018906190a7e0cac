"""Callbacks of a training run, one file each."""
