"""What onnxqat knows about each ONNX operator: one file an operator family, one row an operator."""
