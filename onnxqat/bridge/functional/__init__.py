"""Functions that lowered graphs call: ONNX's semantics where torch has no function for them."""
