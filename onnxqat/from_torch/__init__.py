"""torch.nn.Module to float ONNX, checked against the module."""
