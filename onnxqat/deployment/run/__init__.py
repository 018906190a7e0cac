"""Processes and environments that compilers run in."""
