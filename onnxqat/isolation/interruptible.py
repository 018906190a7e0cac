"""A run of a session that Ctrl-C ends: Python does not look at signals while native code runs."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

_LOOK = 0.5  # seconds: a signal that another thread took does not wake this one


def run(session: Any, names: Sequence[str], feeds: Mapping[str, Any]) -> list[Any]:
    """``session.run(names, feeds)`` in a thread, which is told to end when this one is interrupted.

    onnxruntime looks at its flag between nodes, those in the body of a Loop included.

    Raises:
        Exception: onnxruntime's own.
    """
    import onnxruntime

    options = onnxruntime.RunOptions()
    options.log_severity_level = 4  # it would log that it was told to end
    found: list[Any] = []
    failed: list[BaseException] = []

    def work() -> None:
        try:
            found.extend(session.run(list(names), dict(feeds), options))
        except BaseException as error:  # of the thread; it is raised again below
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(_LOOK)
    except BaseException:
        options.terminate = True
        thread.join()
        raise
    if failed:
        raise failed[0]
    return found
