"""The demo trainer of Knight and of torch's ImageNet example, over the loop of ``finetune``: ``onnxqat train``."""
