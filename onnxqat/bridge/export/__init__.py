"""Export of trained values into the ONNX file."""
