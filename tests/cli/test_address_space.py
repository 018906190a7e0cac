"""Under a limit on address space a command ends with a code, not in the words and with the status of a library."""

import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from onnx import helper

from onnxqat.cli import _address_space
from onnxqat.errors import InputError

pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc")
LIMITED = "import os, resource, sys; resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]),) * 2); "
PARSED = """
from pathlib import Path; from onnxqat.graph import io
held = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
resource.setrlimit(resource.RLIMIT_AS, (held + 6 * 2**24,) * 2)
try: io.read_proto(Path(sys.argv[2]))
except MemoryError as error: print(type(error).__name__)"""


@pytest.mark.parametrize("megabytes", [60, 110, 160])
def test_libraries_are_not_loaded_without_room_for_them(megabytes: int, folder: Path) -> None:
    code = LIMITED + "os.execv(sys.executable, [sys.executable, '-m', 'onnxqat', 'inspect', 'model.onnx'])"
    done = subprocess.run(
        [sys.executable, "-c", code, str(megabytes * 2**20)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("error[machine-limit]: out of memory: "), done.stderr


def test_the_message_says_how_much_is_missing() -> None:
    _address_space.check("torch", 2**30)
    with pytest.raises(InputError, match="torch takes 480 MB of address space, and 100 MB are left"):
        _address_space.check("torch", 100 * 2**20)


def test_a_file_that_does_not_fit_into_memory_is_not_damaged(tmp_path: Path) -> None:
    graph = helper.make_graph([], "g", [], [], [])
    path, weight = tmp_path / "m.onnx", helper.make_tensor("w", onnx.TensorProto.UINT8, [2**26], bytes(2**26), raw=True)
    graph.initializer.append(weight)
    onnx.save(helper.make_model(graph), path)
    command = [sys.executable, "-c", LIMITED + PARSED, str(2**40), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "MemoryError\n", done
