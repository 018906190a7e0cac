"""Quantization-aware training (QAT), fine-tuning of a bridge module: loop, losses, methods, checkpoints."""
