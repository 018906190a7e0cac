"""Training objectives: losses, teachers, distillation, weights of outputs."""
