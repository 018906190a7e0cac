"""A headless Chromium, driven by its DevTools protocol through a pipe: JSON texts that end in a zero byte.

The pipe is part of Chromium (``--remote-debugging-pipe``), so no package for WebSockets or browser drivers is needed.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
VARIABLE = "ONNXQAT_CHROMIUM"
MOVE = """
import os, sys
read, write = (os.dup(int(n)) for n in sys.argv[1:3])
while min(read, write) < 5:
    read, write = os.dup(read), os.dup(write)
os.dup2(read, 3)
os.dup2(write, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
PATIENCE = 60.0
"""Seconds after which a browser that says nothing is given up: the test fails with this reason, whatever the load."""


def find() -> str | None:
    """The executable that the environment names, or one on the path."""
    return os.environ.get(VARIABLE) or next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One page of a running Chromium."""

    def __init__(self, executable: str, profile: Path) -> None:
        down_read, self._down = os.pipe()
        self._up, up_write = os.pipe()
        flags = [
            "--headless", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            "--allow-file-access-from-files", "--force-color-profile=srgb",
        ]  # fmt: skip
        if os.geteuid() == 0:
            flags.append("--no-sandbox")  # Chromium refuses to start its sandbox for root
        # Chromium reads commands from descriptor 3 and writes to 4; a child of its own moves the pipes there.
        command = [*flags, "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", MOVE, str(down_read), str(up_write), executable, *command],
            pass_fds=(down_read, up_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(down_read)
        os.close(up_write)
        self._buffer, self._next = b"", 0
        self.events: list[dict[str, Any]] = []
        target = next(t for t in self.send("Target.getTargets")["targetInfos"] if t["type"] == "page")
        attached = self.send("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")

    _session: str | None = None

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol; events that come meanwhile are kept."""
        self._next += 1
        message: dict[str, Any] = {"id": self._next, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._down, json.dumps(message).encode() + b"\0")
        while True:
            found = self._read()
            if found.get("id") == self._next:
                assert "error" not in found, f"{method}: {found['error']}"
                return dict(found["result"])
            self.events.append(found)

    def _read(self) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._up], [], [], max(0.0, end - time.monotonic()))
            part = os.read(self._up, 1 << 20) if ready else b""
            assert part, "Chromium said nothing more"
            self._buffer += part
        line, self._buffer = self._buffer.split(b"\0", 1)
        return dict(json.loads(line))

    def open(self, page: Path, fragment: str = "") -> None:
        """Load a file, and wait for its script."""
        self.send("Page.navigate", url="about:blank")  # another fragment of the same page would not load it anew
        self.events.clear()
        self.send("Page.navigate", url=page.resolve().as_uri() + fragment)
        end = time.monotonic() + PATIENCE
        while not self.run("document.documentElement?.dataset.ready ?? ''"):
            assert time.monotonic() < end, f"the page is not ready: {self.problems()}"
            time.sleep(0.05)
        # Observers of sizes are called behind the first frame's own callbacks, on a busy machine after the script's end:
        # a timer that a frame starts runs when they have.
        self.run("new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)))")

    def run(self, script: str) -> Any:
        """Value of a JavaScript expression, awaited."""
        found = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def size(self, width: int, height: int, *, dark: bool = False) -> None:
        """Size of the view, and the system's colour scheme."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.send("Emulation.setEmulatedMedia", features=features)

    def click(self, selector: str) -> None:
        """Click the middle of an element, as a mouse does."""
        place = self.run(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            " e.scrollIntoView({block: 'center', behavior: 'instant'}); const r = e.getBoundingClientRect();"
            " return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        self.press(*place)

    def press(self, x: float, y: float) -> None:
        """Click a point of the view."""
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def key(self, key: str) -> None:
        """Press a key of that name."""
        text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
        codes = {"ArrowDown": 40, "ArrowUp": 38, "Enter": 13, "Escape": 27, "Tab": 9}
        code = codes.get(key, ord(key.upper()) if len(key) == 1 else 0)
        self.send("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, **text)
        self.send("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def screenshot(self, path: Path) -> None:
        """Write what is seen as PNG."""
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"]))

    def problems(self) -> list[str]:
        """Errors of console, script and policy so far, and addresses beside the page that were asked for."""
        self.run("0")  # events that are under way have come then
        found = []
        for event in self.events:
            method, told = event.get("method"), event.get("params", {})
            if method == "Runtime.exceptionThrown":
                found.append(str(told["exceptionDetails"].get("exception", {}).get("description", told)))
            elif method == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert"):
                found.append(str(told["args"]))
            elif method == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
                found.append(told["entry"]["text"])
            elif method == "Network.requestWillBeSent" and not told["request"]["url"].startswith("file:"):
                found.append(f"fetched {told['request']['url']}")
        pages = [e for e in self.events if e.get("method") == "Network.requestWillBeSent"]
        return found + [f"fetched {p['params']['request']['url']}" for p in pages[1:]]

    def close(self) -> None:
        """End the browser and all its processes."""
        with contextlib.suppress(AssertionError, OSError):
            self._session = None
            self.send("Browser.close")
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


@contextlib.contextmanager
def running(executable: str, profile: Path) -> Iterator[Browser]:
    """A browser for a block."""
    browser = Browser(executable, profile)
    try:
        yield browser
    finally:
        browser.close()
