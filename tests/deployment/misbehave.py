"""Stands for a vendor's compiler that crashes or hangs; run as the worker process."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    job = (folder / "job.json").read_text(encoding="utf-8")
    if "crash" in job:
        print("the vendor's last words", flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    Path(os.environ["CHILD_FILE"]).write_text(str(child.pid), encoding="utf-8")
    time.sleep(60)
