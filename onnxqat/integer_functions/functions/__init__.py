"""Integer functions, one file for each operator, found by its name."""

from __future__ import annotations
