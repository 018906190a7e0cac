"""Import of an ONNX graph as a torch module."""
