"""Fine-tuning of a bridge module: loop, losses, methods, checkpoints."""
