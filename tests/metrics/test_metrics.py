"""Each metric against the well-known library, or against numbers written out."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from onnxqat import metrics
from onnxqat.data import preprocess as lines
from onnxqat.data.data import Data, open_data
from onnxqat.data.inputs import InputInfo
from onnxqat.errors import QatError
from onnxqat.metrics import Predictor

X = InputInfo("x", "float32", (None, 4))


def predictor(outputs: dict[str, np.ndarray], batch: int | None = None) -> Predictor:
    """Gives the rows of `outputs` whose numbers the first column of the input holds."""

    def run(feeds: Any) -> dict[str, np.ndarray]:
        rows = feeds["x"][:, 0].astype(int)
        return {name: array[rows] for name, array in outputs.items()}

    return Predictor(run, [InputInfo("x", "float32", (batch, 4))], list(outputs), name="it")


def data(count: int, labels: np.ndarray | None = None, batch_size: int = 3) -> Data:
    x = np.zeros((count, 4), np.float32)
    x[:, 0] = np.arange(count)
    arrays = {"x": x} if labels is None else {"x": x, "labels": labels}
    return open_data(arrays, [X], batch_size=batch_size)


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("batch", [None, 1, 4])
def test_top1_and_top5_with_labels_and_against_float(batch: int | None) -> None:
    scores, labels = random(10, 7), np.arange(10) % 7
    rank = (scores > np.take_along_axis(scores, labels[:, None], 1)).sum(1)
    model = predictor({"y": scores[:, :, None, None]}, batch)
    assert metrics.resolve("top1", data=data(10, labels))(model) == (rank == 0).mean()
    assert metrics.resolve("top5", data=data(10, labels))(model) == (rank < 5).mean()
    other = predictor({"y": random(10, 7, seed=1)})
    agreement = metrics.resolve("top1", data=data(10), reference=other)
    assert agreement(model) == (scores.argmax(1) == random(10, 7, seed=1).argmax(1)).mean()
    assert agreement(other) == 1
    assert agreement.against == "float model"


def test_closeness_is_the_worst_output_and_nan_the_worst_number() -> None:
    one, two = random(9, 5), random(9, 2, 3, seed=1)
    noisy = two + 0.1 * random(9, 2, 3, seed=2)
    original, model = predictor({"a": one, "b": two}), predictor({"a": one, "b": noisy})
    sqnr = metrics.resolve("sqnr", data=data(9), reference=original)
    wanted = 10 * math.log10((two.astype(float) ** 2).sum() / ((two.astype(float) - noisy) ** 2).sum())
    assert sqnr(model) == pytest.approx(wanted, rel=1e-12)
    assert sqnr(original) == math.inf
    assert sqnr.drop(math.inf, 20.0) == pytest.approx(10.0)  # percent of the signal
    cosine = metrics.resolve("cosine", data=data(9), reference=original)
    a, b = two.astype(float).ravel(), noisy.astype(float).ravel()
    assert cosine(model) == pytest.approx(a @ b / math.sqrt((a @ a) * (b @ b)), rel=1e-12)
    broken = predictor({"a": np.where(one > 1, np.nan, one), "b": two})
    assert (sqnr(broken), cosine(broken)) == (-math.inf, -math.inf)


def test_f1_is_that_of_scikit_learn() -> None:
    f1 = pytest.importorskip("sklearn.metrics").f1_score
    scores, labels = random(40, 4), np.random.default_rng(1).integers(0, 4, 40)
    found = metrics.resolve("f1", data=data(40, labels))(predictor({"y": scores}))
    assert found == pytest.approx(f1(labels, scores.argmax(1), average="macro"), rel=1e-12)
    tokens = np.random.default_rng(2).integers(-1, 3, (40, 6))
    scores = random(40, 6, 3)
    found = metrics.resolve("f1", data=data(40, tokens))(predictor({"y": scores}))
    kept = tokens >= 0
    assert found == pytest.approx(f1(tokens[kept], scores.argmax(2)[kept], average="macro"), rel=1e-12)
    many = np.random.default_rng(3).integers(0, 2, (40, 4))
    for values, threshold in ((random(40, 4), 0.0), (np.abs(np.tanh(random(40, 4))), 0.5)):
        found = metrics.resolve("f1", data=data(40, many))(predictor({"y": values}))
        assert found == pytest.approx(f1(many, values > threshold, average="macro", zero_division=0), rel=1e-12)
        found = metrics.resolve("f1", data=data(40, many[:, 0]))(predictor({"y": values[:, :1]}))
        assert found == pytest.approx(f1(many[:, 0], values[:, 0] > threshold), rel=1e-12)


def test_spearman_is_that_of_scipy() -> None:
    spearmanr = pytest.importorskip("scipy.stats").spearmanr
    values, labels = np.round(random(30, 1), 1), np.round(random(30, seed=1), 1)
    found = metrics.resolve("spearman", data=data(30, labels))(predictor({"y": values}))
    assert found == pytest.approx(spearmanr(values[:, 0], labels).statistic, rel=1e-12)
    assert metrics.resolve("spearman", data=data(30, labels))(predictor({"y": 0 * values})) == -math.inf
    embeddings, pairs = random(30, 5), np.repeat(labels[:15], 2)
    one, two = embeddings[::2].astype(float), embeddings[1::2].astype(float)
    cosines = (one * two).sum(1) / np.linalg.norm(one, axis=1) / np.linalg.norm(two, axis=1)
    score = metrics.resolve("spearman", data=data(30, pairs))
    assert score(predictor({"y": embeddings})) == pytest.approx(spearmanr(cosines, labels[:15]).statistic, rel=1e-12)
    # The mean of these tokens is the embedding.
    tokens = embeddings[:, None] + np.array([-1, 0, 1], np.float32)[None, :, None]
    assert score(predictor({"y": tokens})) == pytest.approx(spearmanr(cosines, labels[:15]).statistic, rel=1e-4)
    with pytest.raises(QatError, match="pairs"):
        metrics.resolve("spearman", data=data(30, labels))(predictor({"y": embeddings}))


@pytest.mark.parametrize("form", ["scores", "last", "classes"])
def test_miou_is_that_of_scikit_learn(form: str) -> None:
    jaccard = pytest.importorskip("sklearn.metrics").jaccard_score
    labels = np.random.default_rng(1).integers(0, 3, (8, 5, 6))
    labels[0, 0] = 255
    scores = random(8, 4, 5, 6)
    output = {"scores": scores, "last": scores.transpose(0, 2, 3, 1), "classes": scores.argmax(1)[:, None]}[form]
    kept = labels != 255
    wanted = jaccard(labels[kept], scores.argmax(1)[kept], average="macro")
    assert metrics.resolve("miou", data=data(8, labels))(predictor({"y": output})) == pytest.approx(wanted, rel=1e-12)


def test_what_does_not_fit_is_refused_by_name() -> None:
    labels = np.arange(6) % 3
    two = predictor({"a": random(6, 3), "b": random(6, 3)})
    cases: list[tuple[str, Any, Any]] = [
        ("score-output", "top1", lambda: metrics.resolve("top1", data=data(6, labels))(two)),
        ("score-output", "score-output", lambda: metrics.resolve("top5", data=data(6, labels))(predictor({"a": random(6, 3)}))),
        ("score-output", "shape", lambda: metrics.resolve("sqnr", data=data(6), reference=two)(
            predictor({"a": random(6, 3), "b": random(6, 4)}))),
        ("data-labels", "f1 needs labels", lambda: metrics.resolve("f1", data=data(6))),
        ("data-missing", "float model", lambda: metrics.resolve("sqnr", data=data(6))),
        ("data-missing", "no data", lambda: metrics.resolve("top1")),
        ("name-unknown", "cosine", lambda: metrics.resolve("cosin", data=data(6))),
        ("data-format", "once", lambda: metrics.resolve("top1", data=open_data(iter([{"x": random(6, 4)}]), [X]))),
        ("option-invalid", "does not read", lambda: metrics.resolve("top1", data=data(6), labels="l.json")),
        ("data-not-found", "no such file", lambda: metrics.resolve("missing.py:f")),
    ]  # fmt: skip
    for code, words, make in cases:
        with pytest.raises(QatError, match=words) as caught:
            make()
        assert caught.value.code == code


def test_a_function_gets_what_it_asks_for(tmp_path: Path) -> None:
    model = Predictor(lambda feeds: {}, [], [], file=lambda path: path.write_text("model"))

    def typed(file: Path) -> float:
        return len(file.read_text())

    def words(model_file: str) -> float:
        return len(Path(model_file + "").read_text())

    def unknown(model):  # type: ignore[no-untyped-def]
        return len(Path(str(model)).read_text()) + 0 * len(model({}))

    for function in (typed, words, unknown, lambda path: len(path.name) - 5):
        assert metrics.resolve(function)(model) == 5
    compiled = Predictor(lambda feeds: {}, [], [], name="the compiled model")
    with pytest.raises(QatError, match="the compiled model") as caught:
        metrics.resolve(typed)(compiled)
    assert caught.value.code == "score-failed"
    (tmp_path / "own.py").write_text(
        "import sys\nimport beside\ndef good(predict): return beside.VALUE\ndef bad(p): sys.exit(0)\n"
    )
    (tmp_path / "beside.py").write_text("VALUE = 3\n")
    assert metrics.resolve(f"{tmp_path}/own.py:good")(model) == 3
    for bad in (f"{tmp_path}/own.py:bad", lambda predict: "much", lambda predict: 1 / 0):
        with pytest.raises(QatError) as caught:
            metrics.resolve(bad)(model)
        assert caught.value.code == "score-failed"


BOXES = np.array([[0, 10, 10, 50, 40], [1, 60, 20, 90, 80], [0, 5, 50, 30, 95]], float)
"""class, x1, y1, x2, y2 in an image of 100 x 100 pixels."""


def folder(root: Path, form: str, sides: tuple[int, int] = (200, 100)) -> Path:
    """Four images of these sides, BOXES in each, in a labelled data set of one of three forms."""
    images = root / "images"
    images.mkdir(parents=True)
    width, height = sides
    entries: dict[str, list[dict[str, Any]]] = {"images": [], "annotations": [], "categories": [{"id": 7}, {"id": 3}]}
    for number in range(4):
        Image.new("RGB", sides, (number, 0, 0)).save(images / f"{number}.png")
        entries["images"].append({"id": number, "file_name": f"{number}.png", "width": width, "height": height})
        rows = []
        for kind, x1, y1, x2, y2 in BOXES / [1, 100, 100, 100, 100]:
            rows.append(f"{int(kind)} {(x1 + x2) / 2} {(y1 + y2) / 2} {x2 - x1} {y2 - y1}\n")
            box = [x1 * width, y1 * height, (x2 - x1) * width, (y2 - y1) * height]
            entries["annotations"].append({"image_id": number, "category_id": [3, 7][int(kind)], "bbox": box})
        if form != "coco":
            place = root / ("labels" if form == "yolo" else "images")
            place.mkdir(exist_ok=True)
            (place / f"{number}.txt").write_text("".join(rows))
    if form == "coco":
        (root / "annotations").mkdir()
        (root / "annotations" / "boxes.json").write_text(json.dumps(entries))
    return images


def detector(found: np.ndarray, outputs: Any) -> Predictor:
    """Gives the boxes `found`, as rows class, x1, y1, x2, y2, score, for each sample, in the form that `outputs` makes."""

    def run(feeds: Any) -> dict[str, np.ndarray]:
        return {name: np.stack([a] * len(feeds["x"])) for name, a in outputs(found).items()}

    return Predictor(run, [InputInfo("x", "float32", (None, 3, 64, 64))], [])


CELLS = [(x, y, s) for s in (8, 16, 32) for y in range(64 // s) for x in range(64 // s)]


def yolox(found: np.ndarray, raw: bool = False) -> dict[str, np.ndarray]:
    rows = np.zeros((len(CELLS), 7))
    rows[:, :2] = [[(x + 0.5) * s, (y + 0.5) * s] for x, y, s in CELLS]
    rows[:, 2:4] = 1
    for place, (kind, x1, y1, x2, y2, score) in enumerate(found):
        rows[place] = [(x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1, score, kind == 0, kind == 1]
    if raw:
        grid = np.array(CELLS, float)
        rows[:, :2] = rows[:, :2] / grid[:, 2:] - grid[:, :2]
        rows[:, 2:4] = np.log(rows[:, 2:4] / grid[:, 2:])
    return {"output": rows}


FORMS = {
    "yolox": yolox,
    "yolox raw": lambda found: yolox(found, raw=True),
    "yolov8": lambda found: {
        "output0": np.concatenate([(r := yolox(found)["output"])[:, :4], r[:, 5:] * r[:, 4:5]], 1).T
    },
    "rows": lambda found: {"out": found[:, [1, 2, 3, 4, 5, 0]]},
    "shares": lambda found: {"out": found[:, [1, 2, 3, 4, 5, 0]] / [64, 64, 64, 64, 1, 1]},
    "finished": lambda found: {
        "num": np.array(len(found) - 1),
        "boxes": found[:, 1:5],
        "scores": found[:, 5],
        "labels": found[:, 0].astype(np.int64),
    },
    "scores": lambda found: {"scores": found[:, 5:] * (found[:, :1] == [0, 1]), "boxes": found[:, 1:5]},
}


@pytest.mark.parametrize("form", FORMS)
def test_coco_map_reads_the_usual_forms(tmp_path: Path, form: str) -> None:
    pytest.importorskip("pycocotools")
    images = open_data(str(folder(tmp_path, "yolo")), [InputInfo("x", "float32", (None, 3, 64, 64))])
    score = metrics.resolve("coco-map", data=images)
    right = np.concatenate([BOXES * [1, 0.64, 0.64, 0.64, 0.64], [[0.9], [0.8], [0.7]]], 1)
    if form == "finished":  # the last row lies beyond the number of boxes
        right = np.concatenate([right, [[0, 0, 0, 9, 9, 0.99]]])
    # The box fewer of class 0 leaves precision 1 up to a recall of 1/2: 51 of 101 points.
    for found, wanted in ((right, 1.0), (right[[0, 1, 3]] if form == "finished" else right[:2], (51 / 101 + 1) / 2)):
        assert score(detector(found, FORMS[form])) == pytest.approx(wanted, abs=1e-9)


@pytest.mark.parametrize("form", ["yolo", "beside", "coco", "named"])
@pytest.mark.parametrize("line", ["letterbox=64", "resize=64,crop=64", "letterbox=64,align=topleft"])
def test_boxes_lie_where_the_preprocessing_puts_them(tmp_path: Path, form: str, line: str) -> None:
    pytest.importorskip("pycocotools")
    images = folder(tmp_path, "coco" if form == "named" else form)
    opened = open_data(
        str(images), [InputInfo("x", "float32", (None, 3, 64, 64))], preprocess=lines.parse(line), limit=3
    )
    named = tmp_path / "annotations" / "boxes.json" if form == "named" else None
    # An image of 200 x 100: letterboxed 64 x 32 with 16 above; cropped out of 128 x 64 with 32 cut off at the left.
    wide, high, left, top = {"le": (64, 32, 0, 16), "re": (128, 64, -32, 0)}[line[:2]]
    top = 0 if "topleft" in line else top
    right = BOXES / 100 * [100, wide, high, wide, high] + [0, left, top, left, top]
    found = np.concatenate([right, [[0.9], [0.8], [0.7]]], 1)
    score = metrics.resolve("coco-map", data=opened, labels=named)
    assert score(detector(found, FORMS["rows"])) == pytest.approx(1.0)
    assert score(detector(np.add(found, [0, 8, 0, 8, 0, 0]), FORMS["rows"])) < 0.9


def test_coco_map_refuses_what_it_cannot_read(tmp_path: Path) -> None:
    pytest.importorskip("pycocotools")
    info = InputInfo("x", "float32", (None, 3, 64, 64))
    images = folder(tmp_path, "yolo")
    score = metrics.resolve("coco-map", data=open_data(str(images), [info]))
    strides = Predictor(lambda feeds: {f"o{s}": np.zeros((len(feeds["x"]), s, s, 7)) for s in (8, 4)}, [info], [])
    with pytest.raises(QatError, match="o8") as caught:
        score(strides)
    assert caught.value.code == "score-output"
    (tmp_path / "labels" / "0.txt").write_text("0 1 1\n")
    for labels, code in (("missing.json", "data-not-found"), (None, "data-labels")):
        with pytest.raises(QatError) as caught:
            metrics.resolve("coco-map", data=open_data(str(images), [info]), labels=labels)
        assert caught.value.code == code
