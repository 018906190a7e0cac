"""Equalization: channels of unlike size brought to sizes that one scale suits; the float function stays."""
