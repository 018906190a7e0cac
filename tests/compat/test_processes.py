"""Processes of one run end with the one that started them."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import hanging

# A parent that is killed while its children still load torch.
PARENT = """
import os, signal, time
import torch.multiprocessing
from onnxqat.compat.classification import processes

def work(gpu):
    time.sleep(3600)

if __name__ == "__main__":
    torch.multiprocessing.spawn(processes._process, (work, "tcp://127.0.0.1:1", 0, 2), nprocs=2, join=False)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_children_of_a_killed_parent_end(tmp_path: Path, repository: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT, encoding="utf-8")
    # The children hold the pipe too: it ends with the last of them, and the limit is for those that do not end.
    done = subprocess.run(
        [sys.executable, str(script)], cwd=repository, stdout=subprocess.PIPE, timeout=hanging.SECONDS, check=False
    )
    assert done.returncode == -signal.SIGKILL
