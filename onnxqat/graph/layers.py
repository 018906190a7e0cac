"""Operators of layers: those that multiply an activation with a weight and add the products up."""

CONVOLUTIONS = ("Conv", "ConvTranspose")
LAYERS = (*CONVOLUTIONS, "Gemm", "MatMul")
RECURRENT = ("LSTM", "GRU", "RNN")
