"""Ranges and scales in the words of vendors' own tools: one file a form, found by its name."""
