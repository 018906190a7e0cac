"""LiteRT models (``.tflite``) written from the deploy form: int8 operators of channels-last tensors."""
