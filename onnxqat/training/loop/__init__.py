"""The training loop: steps, checkpoints, the best weights, and steps that are not finite."""
