"""``python -m onnxqat``."""

from onnxqat.cli.main import main

main()
