"""Training on several processes: who takes part, which samples each one sees, what they agree on."""
