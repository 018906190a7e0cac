"""Training data: batches, held-out samples, data sets."""
