"""CPU seconds of ``insert-qdq`` as a process, calibration taken out; checks that torch stays unloaded.

python tools/bench/insert_speed.py [MODEL.onnx] [--runs 5]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import _shared

PROCESS = """
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
insert.insert_qdq(sys.argv[1], sys.argv[2], random_data=True, output=sys.argv[3])
assert "torch" not in sys.modules
print(time.process_time() - sum(spent), sum(spent))
"""


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path, default=_shared.MODELS / "resnet20_cifar10_bn.onnx")
    parser.add_argument("--backend", default="onnxruntime-cpu")
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    output = _shared.ROOT / "runs" / "insert_speed.onnx"
    output.parent.mkdir(exist_ok=True)
    command = [sys.executable, "-c", PROCESS, str(arguments.model), arguments.backend, str(output)]
    found = []
    for _ in range(arguments.runs):
        result = subprocess.run(command, capture_output=True, text=True, check=True)
        found.append([float(v) for v in result.stdout.split()])
    own, calibration = ([round(v, 3) for v in sorted(column)] for column in zip(*found, strict=True))
    middle = len(own) // 2
    print(json.dumps({"cpu seconds": own[middle], "all runs": own, "calibration": calibration[middle]}))


if __name__ == "__main__":
    main()
