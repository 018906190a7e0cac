"""torch's exporters, one file each: ``convert(call, options)`` gives an onnx_ir model."""
