"""The report on one quantized model: graph, quantizers, costs, training and targets in one data model and one page."""
