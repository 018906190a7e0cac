"""One file for each equalization, with a class ``Method``; :mod:`onnxqat.backends.equalizations` has their order."""
