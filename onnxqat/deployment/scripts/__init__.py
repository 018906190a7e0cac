"""Scripts for the environment of a compiler: the standard library, numpy and that compiler, nothing of onnxqat."""
