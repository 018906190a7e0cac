"""Decoders of tokens: their caches, greedy generation, and the samples that it leaves for calibration."""
