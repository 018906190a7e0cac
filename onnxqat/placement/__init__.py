"""Placement of Q/DQ pairs: a backend table resolved over a graph to a plan."""
