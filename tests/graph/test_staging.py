"""Staging folders are gone at the end of their block."""

import contextlib
import threading
from pathlib import Path

from onnxqat.graph.staging import staging


def test_a_folder_that_is_still_written_to_is_removed(tmp_path: Path) -> None:
    """A compiler that is being killed makes files until it is dead."""
    over = threading.Event()

    def write(folder: Path) -> None:
        """Put a file into `folder` each time that it has been emptied, three times."""
        made = 0
        with contextlib.suppress(FileNotFoundError):  # the folder is gone
            while made < 3 and not over.is_set():
                if not any(folder.iterdir()):
                    (folder / f"{made}").touch()
                    made += 1

    with staging(tmp_path) as new:
        writer = threading.Thread(target=write, args=(new.parent,))
        writer.start()
    over.set()
    writer.join()
    assert list(tmp_path.iterdir()) == []
