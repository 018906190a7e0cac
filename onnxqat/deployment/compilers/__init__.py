"""Compilers and runtimes that take QDQ ONNX: one file each, found by its name; what it stands for is in its class."""
