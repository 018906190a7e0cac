"""Pictures of a report for the documentation: each section as a small PNG, by a headless Chromium.

    python tools/report_pictures.py report.html FOLDER [TENSOR]

TENSOR is the quantizer that is selected, by the beginning of its name.
"""

import base64
import io
import json
import sys
import tempfile
from pathlib import Path

from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.report import chromium

SECTIONS = ("sensitivity", "training", "quantizers")
WIDTH, HEIGHT, TALLEST = 1280, 760, 480
COLOURS = 64
"""Colours of a picture: few flat ones make files of some ten kilobytes."""


def box(browser: chromium.Browser, selector: str) -> dict[str, float]:
    found = browser.run(
        f"(() => {{ const r = document.querySelector({json.dumps(selector)}).getBoundingClientRect();"
        " return [r.x + scrollX, r.y + scrollY, r.width, r.height]; })()"
    )
    x, y, width, height = found
    return {"x": max(x - 12, 0), "y": y, "width": width + 12, "height": min(height, TALLEST), "scale": 1}


def save(browser: chromium.Browser, path: Path, clip: dict[str, float] | None) -> None:
    asked = {"format": "png"} if clip is None else {"format": "png", "clip": clip, "captureBeyondViewport": True}
    picture = Image.open(io.BytesIO(base64.b64decode(browser.send("Page.captureScreenshot", **asked)["data"])))
    picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    print(path, path.stat().st_size)


def main() -> None:
    page, folder, tensor = Path(sys.argv[1]), Path(sys.argv[2]), (sys.argv[3] if len(sys.argv) > 3 else "")
    executable = chromium.find()
    assert executable, f"no Chromium on the path: install one, or name it in {chromium.VARIABLE}"
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as profile, chromium.running(executable, Path(profile)) as browser:
        browser.size(WIDTH, HEIGHT)
        browser.open(page)
        present = [name for name in SECTIONS if browser.run(f"document.getElementById({name!r}) !== null")]
        for name in present:
            save(browser, folder / f"report_{name}.png", box(browser, f"#{name}"))
        content = browser.run("document.getElementById('data').textContent")
        names = [one["tensor"] for one in json.loads(content)["quantizers"]]
        which = next(i for i, one in enumerate(names) if one.startswith(tensor))
        browser.open(page, f"#quantizer={which}")
        browser.run("document.getElementById('graph').scrollIntoView({behavior: 'instant'})")
        save(browser, folder / "report_selection.png", None)


if __name__ == "__main__":
    main()
