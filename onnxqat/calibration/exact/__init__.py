"""Scales for ``--exact``: integer sums, means and products without ties, and shifts within a chip's limits."""
