"""Execution of training steps: device, precision, memory, arithmetic."""
