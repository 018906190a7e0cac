"""Proofs on finished files: parity, accuracy, noise per tensor."""
