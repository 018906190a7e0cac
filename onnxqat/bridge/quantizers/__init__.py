"""Fake-quantizers: modules, their states, and what keeps their scales trainable."""
