"""CPU seconds of ``onnxqat insert-qdq`` as a whole process, the calibration taken out; checks that torch stays unloaded.

python tools/bench/insert_speed.py [MODEL.onnx] [--runs 9]

Twice: the command, and the Python function alone. The kernel counts each process (user and system time of ``wait4``),
interpreter start and every import in it; what the process itself measures around the calibration is subtracted: the
sessions of onnxruntime, its import, and the reading and observing of data. Modules come from compiled bytecode, as they
do from an installed package: one run before the counted ones writes it. CPU seconds rise when other processes share the
cores, so the lowest of all runs is the figure.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import _shared

CALIBRATION = """
import sys, time
from onnxqat import insert
from onnxqat.calibration import runner
spent = []
def timed(*arguments, calibrate=runner.calibrate, **options):
    start = time.process_time()
    import onnxruntime
    try:
        return calibrate(*arguments, **options)
    finally:
        spent.append(time.process_time() - start)
runner.calibrate = timed
"""
END = """
assert "torch" not in sys.modules
open(sys.argv[4], "w").write(str(sum(spent)))
"""
FUNCTION = "insert.insert_qdq(sys.argv[1], sys.argv[2], random_data=True, output=sys.argv[3])\n"
COMMAND = """
from onnxqat.cli.main import run
status = run(["insert-qdq", sys.argv[1], "--backend", sys.argv[2], "--random-data", "-o", sys.argv[3]])
assert status == 0
"""


def measure(work: str, model: Path, backend: str, folder: Path) -> tuple[float, float]:
    """CPU seconds of one process without and of its calibration; bytecode is kept in `folder`."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(folder / "bytecode")
    note = folder / "calibration"
    arguments = [str(model), backend, str(folder / "quantized.onnx"), str(note)]
    command = [sys.executable, "-c", CALIBRATION + work + END, *arguments]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"{command[:2]} ... left with status {os.waitstatus_to_exitcode(status)}")
    calibration = float(note.read_text())
    return usage.ru_utime + usage.ru_stime - calibration, calibration


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path, default=_shared.MODELS / "resnet20_cifar10_bn.onnx")
    parser.add_argument("--backend", default="onnxruntime-cpu")
    parser.add_argument("--runs", type=int, default=9)
    arguments = parser.parse_args()
    found: dict[str, object] = {"load average": os.getloadavg()[0]}
    with tempfile.TemporaryDirectory() as folder:
        for name, work in (("command", COMMAND), ("function", FUNCTION)):
            measure(work, arguments.model, arguments.backend, Path(folder))
            runs = [
                measure(work, arguments.model, arguments.backend, Path(folder)) for _ in range(max(1, arguments.runs))
            ]
            own = sorted(round(seconds, 3) for seconds, _ in runs)
            calibration = min(round(seconds, 3) for _, seconds in runs)
            found[name] = {"cpu seconds": own[0], "all runs": own, "calibration, lowest": calibration}
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
