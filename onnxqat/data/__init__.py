"""Data: one way to open any source, preprocessing, and the samples that a file records."""
