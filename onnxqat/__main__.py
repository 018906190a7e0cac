"""``python -m onnxqat``, and the script ``onnxqat``."""

import signal


def main() -> None:
    """Load the command line and run it."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # ends the process without a traceback while modules are loaded
    from onnxqat.cli import main as command_line

    command_line.main()


if __name__ == "__main__":
    main()
