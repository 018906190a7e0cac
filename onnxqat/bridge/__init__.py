"""The bridge between a QDQ ONNX file and a trainable torch module, both ways."""
