"""Steps of :func:`onnxqat.insert_qdq` that are ideas of their own."""
