"""The whole way of a model in one call: calibrate, fine-tune where that is needed, prove, hand off."""
