"""onnxruntime as onnxqat runs it: sessions, custom operators, models that break, and the origin of NaN."""
