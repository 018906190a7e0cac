"""A port for processes that a test starts and that meet there."""

import contextlib
import socket
from collections.abc import Iterator


@contextlib.contextmanager
def held_port() -> Iterator[int]:
    """A port of this machine that nobody else is given for the length of a ``with`` block.

    Process 0 listens seconds after it was started. The socket here keeps the port until then: Linux lets a second one
    bind it where both allow it and none listens yet.
    """
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]
