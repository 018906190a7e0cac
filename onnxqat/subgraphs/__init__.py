"""Parts of a model: cut out by tensor names, put back into the whole."""
