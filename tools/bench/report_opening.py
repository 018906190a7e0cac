"""Opening time and smoothness of report pages in a headless Chromium, and a picture of the graph of each.

    python tools/bench/report_opening.py [--chain NODES] [--pictures FOLDER] PAGE...

``--chain`` adds the page about a chain of so many layers with a cost, a kernel and a quantizer each, as in the tests.
Prints for each page its bytes, milliseconds until everything is loaded and drawn (the least of five), CPU seconds of the
page's thread for that, and the mean and longest time between two frames while the graph is zoomed 60 times.
"""

import argparse
import base64
import io
import os
import tempfile
from pathlib import Path

from PIL import Image

from onnxqat.report.model_report import page
from tests.report import chromium

RUNS, FRAMES, COLOURS = 5, 60, 64
WIDTH, HEIGHT, GRAPH = 1280, 900, 560
ZOOM = f"""
new Promise((done) => {{
  const canvas = document.querySelector("canvas"), place = canvas.getBoundingClientRect(), start = performance.now();
  let frames = 0, longest = 0, last = start;
  const step = () => {{
    const now = performance.now();
    longest = Math.max(longest, now - last);
    last = now;
    if (frames++ === {FRAMES}) return done([(now - start) / {FRAMES}, longest]);
    const at = {{clientX: place.x + 300, clientY: place.y + 200, deltaY: frames % 2 ? -120 : 110, cancelable: true}};
    canvas.dispatchEvent(new WheelEvent("wheel", at));
    requestAnimationFrame(step);
  }};
  requestAnimationFrame(step);
}})
"""


def spent(browser: chromium.Browser) -> float:
    found = {one["name"]: one["value"] for one in browser.send("Performance.getMetrics")["metrics"]}
    return float(found["TaskDuration"])


def opened(browser: chromium.Browser, file: Path) -> tuple[float, float]:
    """Milliseconds until the page is loaded, and CPU seconds of its thread."""
    browser.send("Page.navigate", url="about:blank")
    browser.run("0")
    before = spent(browser)
    browser.open(file)
    after = spent(browser)
    # The counter begins anew where the page gets a process of its own.
    seconds = after - before if after >= before else after
    return browser.run("performance.getEntriesByType('navigation')[0].loadEventEnd"), seconds


def measure(browser: chromium.Browser, file: Path) -> None:
    runs = [opened(browser, file) for _ in range(RUNS)]
    mean, longest = browser.run(ZOOM)
    load, seconds = (min(column) for column in zip(*runs, strict=True))
    print(
        f"{file.name}: {file.stat().st_size:,} bytes, loaded in {load:.0f} ms ({seconds:.2f} CPU seconds), "
        f"frames every {mean:.1f} ms, at most {longest:.1f} ms; problems: {browser.problems()}"
    )


def picture(browser: chromium.Browser, file: Path, path: Path) -> None:
    browser.open(file)
    place = "(() => { const r = document.getElementById('graph').getBoundingClientRect(); return [r.y + scrollY, r.right]; })()"
    top, right = browser.run(place)
    clip = {"x": 0, "y": top, "width": right, "height": GRAPH, "scale": 0.75}
    found = browser.send("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)["data"]
    image = Image.open(io.BytesIO(base64.b64decode(found))).convert("RGB")
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    print(path, path.stat().st_size)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pages", nargs="*", type=Path)
    parser.add_argument("--chain", type=int, action="append", default=[])
    parser.add_argument("--pictures", type=Path)
    arguments = parser.parse_args()
    executable = chromium.find()
    assert executable, f"no Chromium on the path: install one, or name it in {chromium.VARIABLE}"
    with tempfile.TemporaryDirectory() as folder, chromium.running(executable, Path(folder, "profile")) as browser:
        # The test module asks for the executable when it is imported.
        os.environ.setdefault(chromium.VARIABLE, executable)
        from tests.report.test_model_report_page import content

        for nodes in arguments.chain:
            chain = Path(folder, f"chain_{nodes}.html")
            chain.write_text(page.to_html(content(nodes)), encoding="utf-8")
            arguments.pages.append(chain)
        browser.send("Performance.enable", timeDomain="threadTicks")
        browser.size(WIDTH, HEIGHT)
        for file in arguments.pages:
            measure(browser, file)
            if arguments.pictures is not None:
                arguments.pictures.mkdir(parents=True, exist_ok=True)
                picture(browser, file, arguments.pictures / f"graph_{file.stem}.png")


if __name__ == "__main__":
    main()
