"""Layers between quantizers computed on codes, as the integer kernels of the target compute them."""
