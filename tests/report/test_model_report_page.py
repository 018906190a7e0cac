"""The page of the model report in a real browser: clicks, sorts, filters, keys, contrast; nothing is fetched.

Skipped where no Chromium is found; tests/report/test_model_report.py looks at the document without one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onnxqat.report.model_report import page, schema
from tests.report import chromium

EXECUTABLE = chromium.find()
pytestmark = [
    pytest.mark.skipif(
        EXECUTABLE is None,
        reason=f"no Chromium on the path: install one, or name it in {chromium.VARIABLE}",
    ),
    pytest.mark.skipif(sys.platform == "win32", reason="the pipe of the DevTools protocol has POSIX descriptors"),
]

CONTRAST = """
(() => {
  const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
  const lum = ([r, g, b]) => [r, g, b].map((v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((s, v, k) => s + v * [0.2126, 0.7152, 0.0722][k], 0);
  const behind = (e) => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor); if (c.length < 4 || c[3] > 0) return c; } return [255, 255, 255]; };
  const low = [];
  for (const e of document.querySelectorAll("body *")) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || !e.getClientRects().length || e.closest(".hidden, script, style, noscript")) continue;
    const style = getComputedStyle(e), front = rgb(e.namespaceURI.endsWith("svg") ? style.fill : style.color);
    const [a, b] = [lum(front), lum(behind(e))].sort((x, y) => y - x), ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) low.push(e.tagName + "." + (e.className.baseVal ?? e.className) + " " + e.textContent.slice(0, 20) + " " + ratio.toFixed(2));
  }
  return low;
})()
"""
"""Texts of less contrast than WCAG 2.1 asks of level AA, 4.5 to 1."""


def values(saturated: float) -> schema.Values:
    return schema.Values(
        low=-1.0, high=1.2, counts=list(range(64)), first_code=-128, codes_per_bin=4, code_counts=list(range(64)),
        saturated=saturated, unused_codes=3, codes=256, dead_channels=1, channels=4, values=2016, own_db=40.0,
    )  # fmt: skip


def parameters(scale: float, saturated: float) -> schema.Parameters:
    return schema.Parameters(
        scale=[scale, scale / 2, scale / 4, scale / 8], zero_point=[0], shown=4, total=4, scale_low=scale / 8,
        scale_high=scale, clip_low=-128 * scale, clip_high=127 * scale, values=values(saturated),
    )  # fmt: skip


def content(layers: int = 120) -> schema.ModelReport:
    """A report with all sections: a chain of layers with a skip, in blocks of ten."""
    nodes, edges, quantizers = [], [], []
    for i in range(layers):
        cost = schema.Cost(alone_db=40.0 - i % 30, off_db=20.0, share=(i % 30 + 1) / 2000)
        node = schema.Node(
            name=f"/block{i // 10}/layer{i}/Conv", op="Conv" if i % 2 == 0 else "Relu", block=f"block{i // 10}/layer{i}",
            tensor=f"t{i}", shape=["n", 8, 4, 4], arithmetic="W8A8" if i % 7 else "float", reads=[i], macs=1000 * i,
            multiply_bits=64_000 * i, weight_bytes=32, float_db=50.0 - i % 40, cost=cost,
            reason="" if i % 7 else "kept in float by the user",
        )  # fmt: skip
        runs: Any = "integers" if i % 7 else "float"
        node.kernels = [schema.Kernel(target=0, runs=runs, kernel="QLinearConv", largest_lsb=0.5)]
        nodes.append(node)
        now = parameters(0.01 * (i + 1), i / layers)
        quantizer = schema.Quantizer(
            tensor=f"t{i - 1}" if i else "image", role="activation", grid="int8", bits=8, granularity="channel, axis 1",
            rule="Conv input 0", maker=i - 1 if i else None, readers=[i], now=now, cost=cost, float_db=30.0,
            before=parameters(0.012 * (i + 1), 0.0),
        )  # fmt: skip
        quantizers.append(quantizer)
        edges += [(i - 1, i, i)] if i else []
    edges.append((2, 5, -1))
    sizes: dict[str, Any] = {
        "form": "QDQ",
        "backend": "b",
        "file_bytes": 10,
        "macs": 5,
        "multiply_bits": 7,
        "quantizers": 1,
    }
    model = schema.Variant(name="this file", file="m.onnx", weight_bytes=1000, float_layers=2, output_db=31.0, **sizes)
    other = model.model_copy(update={"name": "float", "form": "float", "weight_bytes": 4000, "output_db": "exact"})
    curve = schema.Curve(name="loss", x=[1.0, 2.0, 3.0], y=[3.0, None, 1.0])
    points = [schema.FrontPoint(name=f"a{k}", x=10.0 + k, y=5.0 - k, front=True, chosen=k == 2) for k in range(4)]
    return schema.ModelReport(
        made_by="0", title="m.onnx", nodes=nodes, edges=edges, quantizers=quantizers, variants=[model, other],
        judgements=[
            schema.Judgement(name="parity", status="green", reason="all agree", source="validate"),
            schema.Judgement(name="accuracy", status="amber", reason="less", remedy="onnxqat profile", source="validate"),
            schema.Judgement(name="deployment", status="red", reason="refused", source="handoff"),
        ],
        targets=[schema.Target(name="chip", integer=5, total=6, largest_lsb=1.5)],
        training=schema.Training(loss=[curve], score=[curve], rates=[curve], scales=[curve], oscillation=[curve]),
        fronts=[schema.Front(title="auto", x_label="multiply-bits", y_label="drop", y_better="less", points=points)],
        curve=curve, sources=["profile: p.json"], remarks=["one thing to know"], samples=8, data="data.npz",
    )  # fmt: skip


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[chromium.Browser]:
    assert EXECUTABLE is not None
    with chromium.running(EXECUTABLE, tmp_path_factory.mktemp("chromium")) as found:
        yield found


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(page.to_html(content()), encoding="utf-8")
    return path


@pytest.fixture
def opened(browser: chromium.Browser, file: Path) -> Iterator[chromium.Browser]:
    """The page, freshly loaded; whatever a test does, nothing is fetched and nothing goes wrong."""
    browser.size(1400, 900)
    browser.open(file)
    yield browser
    assert browser.problems() == []


def texts(browser: chromium.Browser, selector: str) -> list[str]:
    found = browser.run(f"[...document.querySelectorAll({json.dumps(selector)})].map((e) => e.textContent)")
    assert isinstance(found, list)
    return found


def type_into(browser: chromium.Browser, selector: str, text: str) -> None:
    browser.click(selector)
    browser.send("Input.insertText", text=text)


def test_all_sections_are_there_and_linked(opened: chromium.Browser) -> None:
    expected = [
        "Overview", "Graph", "Sensitivity", "Quantizers", "Nodes", "Models side by side", "What the compilers did",
        "Pareto front", "Training",
    ]  # fmt: skip
    assert texts(opened, "#sections a") == expected
    assert texts(opened, "main h2") == expected
    assert texts(opened, ".verdicts .status") == ["green", "amber", "red"]
    assert opened.run("document.querySelectorAll('#training figure').length") == 5


def test_a_row_opens_its_quantizer_and_its_links_lead_on(opened: chromium.Browser) -> None:
    opened.click("#quantizers tbody tr:nth-child(2) button")
    assert texts(opened, "#detail .name") == ["t0"]
    assert texts(opened, "#detail h3")[:3] == ["Values", "Codes", "Scales of 4 channels"]
    assert "0.83 %" in texts(opened, "#detail .facts")[0]  # saturated: 1 of 120
    assert opened.run("document.querySelectorAll('#detail svg .clip').length") >= 1
    assert opened.run("document.querySelectorAll('#detail svg .was').length") == 2  # values and scales before training
    assert opened.run("location.hash") == "#quantizer=1"
    opened.click("#detail .links button")  # its maker
    assert texts(opened, "#detail .name") == ["/block0/layer0/Conv"]
    assert texts(opened, "#nodes tr.chosen button") == ["/block0/layer0/Conv"]
    assert "QLinearConv" in texts(opened, "#detail-body")[0]
    opened.key("Escape")
    assert "Nothing is selected" in texts(opened, "#detail-body")[0]


def test_an_address_opens_what_it_names(browser: chromium.Browser, file: Path) -> None:
    browser.open(file, "#node=17")
    assert texts(browser, "#detail .name") == ["/block1/layer17/Conv"]


def test_tables_sort_filter_and_show_more(opened: chromium.Browser) -> None:
    assert len(texts(opened, "#quantizers tbody tr")) == 60
    saturated = "#quantizers thead th:nth-child(9)"
    assert texts(opened, saturated) == ["saturated"]
    opened.click(saturated + " button")
    assert opened.run(f"document.querySelector({json.dumps(saturated)}).getAttribute('aria-sort')") == "descending"
    assert texts(opened, "#quantizers tbody tr:first-child td:first-child") == ["t118"]
    opened.click(saturated + " button")
    assert texts(opened, "#quantizers tbody tr:first-child td:first-child") == ["image"]
    type_into(opened, "#quantizers input", "saturated>90%")
    assert len(texts(opened, "#quantizers tbody tr")) == 11
    assert texts(opened, "#quantizers [role=status]") == ["11 of 120"]
    type_into(opened, "#quantizers input", " t115")
    assert texts(opened, "#quantizers tbody td:first-child") == ["t115"]
    opened.click("#nodes .more button")
    assert len(texts(opened, "#nodes tbody tr")) == 120


def test_a_table_is_copied_as_it_is_filtered(opened: chromium.Browser) -> None:
    opened.run("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    type_into(opened, "#nodes input", "layer33")
    opened.click("#nodes .head button")
    head, row = opened.run("window.copied").split("\n")
    assert head.split("\t")[:3] == ["node", "operator", "computes on"]
    assert row.split("\t")[:3] == ["/block3/layer33/Conv", "Relu", "W8A8"]
    assert texts(opened, "#live") == ["Copied 1 row"]


def test_search_finds_nodes_and_tensors_by_keyboard(opened: chromium.Browser) -> None:
    opened.key("/")
    opened.send("Input.insertText", text="layer42")
    assert texts(opened, "#found li") == ["/block4/layer42/Conv Conv"]
    opened.key("Enter")
    assert texts(opened, "#detail .name") == ["/block4/layer42/Conv"]
    assert opened.run("document.getElementById('found').hidden") is True


def test_the_graph_answers_to_mouse_and_keys(opened: chromium.Browser) -> None:
    def picture() -> str:
        return str(opened.run("document.querySelector('canvas').toDataURL()"))

    first = picture()
    opened.click("#graph .head button[aria-label='Zoom in']")
    assert picture() != first
    opened.click("#graph .head button[aria-label^='Fit']")
    assert picture() == first
    opened.run("document.querySelector('canvas').focus()")
    opened.key("ArrowDown")
    assert texts(opened, "#detail .name") == ["/block0/layer0/Conv"]
    opened.key("ArrowDown")
    opened.key("ArrowDown")
    assert texts(opened, "#detail .name") == ["/block0/layer2/Conv"]
    assert texts(opened, "#live") == ["Selected node /block0/layer2/Conv"]
    opened.key("ArrowUp")
    assert texts(opened, "#detail .name") == ["/block0/layer1/Conv"]


def follow(browser: chromium.Browser, fragment: str) -> None:
    """Go to a place of the page; its own listener came first, so that it has run when this one is called."""
    told = "addEventListener('hashchange', () => setTimeout(done, 0), {once: true})"
    browser.run(f"new Promise((done) => {{ {told}; location.hash = '{fragment}'; }})")


def test_a_click_on_a_node_selects_it(browser: chromium.Browser, file: Path) -> None:
    browser.size(1400, 900)
    browser.open(file)
    browser.run("document.querySelector('canvas').focus()")
    for _ in range(6):
        browser.key("-")
    # Where names are too small to be read, a selection from elsewhere is brought into the middle, in legible size.
    follow(browser, "node=60")
    browser.run("document.querySelector('canvas').scrollIntoView({block: 'center', behavior: 'instant'})")
    browser.key("Escape")
    assert "Nothing is selected" in texts(browser, "#detail-body")[0]
    middle = "(() => { const r = document.querySelector('canvas').getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; })()"
    browser.press(*browser.run(middle))
    assert texts(browser, "#detail .name") == ["/block6/layer60/Conv"]
    assert browser.problems() == []


def test_blocks_collapse_and_colours_have_a_legend(opened: chromium.Browser) -> None:
    before = opened.run("document.querySelector('canvas').toDataURL()")
    opened.run(
        "[...document.querySelectorAll('#graph .head button')].find((b) => b.textContent === 'Collapse blocks').click()"
    )
    assert opened.run("document.querySelector('canvas').toDataURL()") != before
    assert texts(opened, "#legend span")[0].startswith("W8A8")
    options = opened.run("[...document.querySelectorAll('#colors option')].map((o) => o.value)")
    assert options == ["arithmetic", "operator", "error", "cost", "work", "target0"]
    for name in options:
        opened.run(
            f"(() => {{ const s = document.getElementById('colors'); s.value = '{name}'; s.dispatchEvent(new Event('change')); }})()"
        )
        assert texts(opened, "#legend span")[0]
    opened.click("#targets .head button")
    assert opened.run("document.getElementById('colors').value") == "target0"
    assert texts(opened, "#legend span")[0] == "integers 102"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1400, 700])
def test_every_text_has_the_contrast_of_level_aa(browser: chromium.Browser, file: Path, width: int, dark: bool) -> None:
    browser.size(width, 900, dark=dark)
    browser.open(file, "#quantizer=5")
    assert browser.run("document.documentElement.dataset.theme") == ("dark" if dark else "light")
    assert browser.run(CONTRAST) == []
    assert browser.run("document.documentElement.scrollWidth <= window.innerWidth")
    assert browser.problems() == []


def test_the_theme_can_be_chosen(opened: chromium.Browser) -> None:
    opened.click("#theme")
    opened.click("#theme")
    assert texts(opened, "#theme") == ["Theme: dark"]
    assert opened.run("document.documentElement.dataset.theme") == "dark"
    assert texts(opened, "#sections a").count("Training") == 1  # its charts were drawn anew, in place


def test_all_controls_have_names_and_can_be_reached(opened: chromium.Browser) -> None:
    nameless = """[...document.querySelectorAll('button, input, select, canvas, [role=region]')].filter((e) =>
      !(e.textContent.trim() || e.getAttribute('aria-label') || e.closest('label')) || e.tabIndex < 0).map((e) => e.outerHTML)"""
    assert opened.run(nameless) == []
    assert (
        opened.run("[...document.querySelectorAll('svg[role=img]')].every((s) => s.getAttribute('aria-label'))") is True
    )
    assert opened.run("[...document.querySelectorAll('thead th')].every((t) => t.scope === 'col')") is True


def test_five_thousand_nodes_open_move_and_collapse(browser: chromium.Browser, tmp_path: Path) -> None:
    large = tmp_path / "large.html"
    large.write_text(page.to_html(content(5000)), encoding="utf-8")
    browser.size(1400, 900)
    browser.open(large)
    assert len(texts(browser, "#nodes tbody tr")) == 60  # long tables are not built as a whole
    before = browser.run("document.querySelector('canvas').toDataURL()")
    browser.run("""(() => { const c = document.querySelector('canvas'), r = c.getBoundingClientRect(); c.focus();
        c.dispatchEvent(new WheelEvent('wheel', {deltaY: -600, clientX: r.x + 300, clientY: r.y + 200, cancelable: true})); })()""")
    assert browser.run("document.querySelector('canvas').toDataURL()") != before
    follow(browser, "node=4321")
    assert texts(browser, "#detail .name") == ["/block432/layer4321/Conv"]
    assert texts(browser, "#nodes tr.chosen") == []  # far down in a table that shows its first rows
    assert browser.problems() == []
