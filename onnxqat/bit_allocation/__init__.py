"""Bit widths for each layer of a model, under a budget: candidates, costs, sensitivity, and the choice between them."""
