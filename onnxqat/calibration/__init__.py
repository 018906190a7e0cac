"""Ranges from data: sources of batches, observers, and the streaming onnxruntime runner."""
