"""Groups: parts of a graph that compute one thing, such as a Gelu, a normalization or attention, in elementary operators."""
