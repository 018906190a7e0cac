"""Data sources: every kind, every error."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from onnxqat.data.data import Data, open_data, random_data
from onnxqat.data.inputs import InputInfo, samples_of
from onnxqat.data.preprocess import parse
from onnxqat.errors import DataError, ModelError, UsageError
from tests.source_tree import package_files

X = InputInfo("x", "float32", ("N", 4))
ONE_BY_ONE = InputInfo("x", "float32", (1, 4))
IMAGE = InputInfo("image", "float32", ("N", 3, 8, 8))
HERE = "tests.calibration.source_of_batches"


def samples(count: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((count, *(shape or (4,)))).astype(np.float32)


def sizes(data: Data, name: str = "x") -> list[int]:
    return [len(feeds[name]) for feeds in data]


def refused(code: str, *messages: str, source: Any, inputs: list[InputInfo], **options: Any) -> None:
    with pytest.raises(DataError) as caught:
        list(open_data(source, inputs, **options))
    assert caught.value.code == code
    for message in messages:
        assert message in str(caught.value)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    for label in ("7", "10"):
        (folder / label).mkdir(parents=True)
        for index in range(3):
            pixels = np.random.default_rng(index).integers(0, 256, (10 + index, 12, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / label / f"{index}.{('png', 'bmp', 'webp')[index]}")
    (folder / "readme.txt").write_text("not an image")
    return folder


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz(tmp_path: Path, save: Any) -> None:
    x, y = samples(10), np.arange(10)
    save(tmp_path / "data.npz", x=x, labels=y, allow_pickle=False)
    data = open_data(tmp_path / "data.npz", [X], batch_size=4)
    assert data.batches == 3
    for _ in range(2):
        batches = list(data.labelled())
        np.testing.assert_array_equal(np.concatenate([feeds["x"] for feeds, _ in batches]), x)
        np.testing.assert_array_equal(np.concatenate([labels for _, labels in batches if labels is not None]), y)
    assert data.remarks == []
    assert sizes(open_data(str(tmp_path / "data.npz"), [X], batch_size=4, limit=6)) == [4, 2]
    assert open_data(tmp_path / "data.npz", [X], batch_size=4, limit=6).batches == 2


def test_npz_is_memory_mapped(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=np.asfortranarray(samples(10)), y=np.arange(10))
    data = open_data(tmp_path / "data.npz", [X])
    assert isinstance(data._source._arrays["x"], np.memmap)  # type: ignore[attr-defined]
    np.testing.assert_array_equal(next(iter(data))["x"], samples(10))


def test_a_label_key_that_is_an_input(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", y=samples(3), label=np.arange(3))
    ((feeds, labels),) = open_data(tmp_path / "data.npz", [InputInfo("y", "float32", (None, 4))]).labelled()
    assert list(feeds) == ["y"]
    assert labels is not None


def test_samples_that_are_whole_feeds() -> None:
    inputs = [X, InputInfo("state", "float32", (2, "N", 8)), InputInfo("rate", "int64", ())]
    arrays = {"x": samples(3), "state": samples(3, 2, 1, 8), "rate": np.full(3, 16000)}
    batches = list(open_data(arrays, inputs))
    assert len(batches) == 3
    assert [array.shape for array in batches[1].values()] == [(1, 4), (2, 1, 8), ()]


def test_folder_of_npz(tmp_path: Path) -> None:
    for index, size in enumerate((2, 5)):
        np.savez(tmp_path / f"{index}.npz", x=samples(size))
    data = open_data(tmp_path, [X])
    assert (sizes(data), data.batches) == ([2, 5], 2)
    cut = open_data(tmp_path, [ONE_BY_ONE])
    assert (sizes(cut), cut.batches) == ([1] * 7, None)
    assert sizes(open_data(tmp_path, [InputInfo("x", "float32", (3, 4))])) == [3, 3]


def test_npy_array_and_mapping(tmp_path: Path) -> None:
    np.save(tmp_path / "data.npy", samples(5))
    for source in (tmp_path / "data.npy", samples(5), {"x": samples(5)}):
        assert sizes(open_data(source, [X], batch_size=3)) == [3, 2]


def test_function_by_name() -> None:
    data = open_data(f"{HERE}:batches", [X])
    assert sizes(data) == sizes(data) == [1, 2, 3]
    assert data.batches is None
    assert sizes(open_data(f"{HERE}:batches", [X], limit=5)) == [1, 2, 2]


def test_function_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "batches_of_mine.py").write_text(
        "import numpy as np\ndef f():\n    yield np.ones((2, 4), np.float32)\n"
    )
    monkeypatch.chdir(tmp_path)
    assert sizes(open_data("batches_of_mine:f", [X])) == [2]


def test_loader_of_torch_tensors_with_labels() -> None:
    torch = pytest.importorskip("torch")
    loader = [[torch.ones(2, 4, requires_grad=True), torch.tensor([1, 0])], [torch.zeros(1, 4), torch.tensor([3])]]
    data = open_data(loader, [X])
    assert data.batches == 2
    assert [labels.tolist() for _, labels in data.labelled() if labels is not None] == [[1, 0], [3]]


def test_generator_is_read_once() -> None:
    def generate() -> Iterator[np.ndarray]:
        yield samples(2)

    assert sizes(open_data(generate, [X])) == [2]
    data = open_data(generate(), [X])
    assert sizes(data) == [2]
    with pytest.raises(DataError, match="only once"):
        sizes(data)


def test_static_batch() -> None:
    stream = [(samples(3), np.arange(3)), (samples(4), np.arange(3, 7))]
    data = open_data(stream, [InputInfo("x", "float32", (2, 4))])
    found = [labels.tolist() for _, labels in data.labelled() if labels is not None]
    assert found == [[0, 1], [2, 3], [4, 5]]
    assert "1 sample, does not fill" in data.remarks[0].message
    assert open_data(samples(7), [InputInfo("x", "float32", (2, 4))]).batches == 3
    refused("data-shape", "takes 8 at a time", source=samples(7), inputs=[InputInfo("x", "float32", (8, 4))])


def test_images(images: Path) -> None:
    data = open_data(images, [IMAGE], preprocess=parse("resize=8x8,scale=1/255"), batch_size=4)
    (first, labels), (second, _) = data.labelled()
    assert first["image"].shape == (4, 3, 8, 8)
    assert second["image"].shape == (2, 3, 8, 8)
    assert labels is not None
    assert labels.tolist() == [10, 10, 10, 7]
    assert 0 <= first["image"].min() < first["image"].max() <= 1
    assert data.remarks == []


@pytest.mark.parametrize(("channels", "colour"), [(3, "rgb"), (1, "gray")])
def test_images_without_a_line(channels: int, colour: str, images: Path) -> None:
    data = open_data(images, [InputInfo("image", "float32", ("N", channels, 8, 8))])
    batch = next(iter(data))["image"]
    assert batch.shape[1:] == (channels, 8, 8)
    assert batch.max() <= 1
    text = f"no preprocessing was given: images go in as resize=model,{colour},scale=1/255"
    assert [remark.message for remark in data.remarks] == [text]


def test_class_folders(images: Path) -> None:
    os.rename(images / "7", images / "cat")
    os.rename(images / "10", images / "ant")
    ((_, labels),) = open_data(images, [IMAGE]).labelled()
    assert labels is not None
    assert labels.tolist() == [0, 0, 0, 1, 1, 1]
    os.rename(images / "cat" / "0.png", images / "loose.png")
    assert [labels for _, labels in open_data(images, [IMAGE]).labelled()] == [None]


def test_image_errors(images: Path) -> None:
    dynamic = InputInfo("image", "float32", ("N", 3, "h", "w"))
    refused("data-shape", "1.bmp", "resize=224x224", source=images, inputs=[dynamic], preprocess=parse("rgb"))
    refused("data-input-name", "one input", source=images, inputs=[IMAGE, X])
    refused("data-shape", "rank 4", source=images, inputs=[X])
    (images / "7" / "9.jpg").write_bytes(b"no image")
    refused("data-format", "9.jpg", "not a readable image", source=images, inputs=[IMAGE])
    np.savez(images / "data.npz", x=samples(1))
    refused("data-format", "one kind", source=images, inputs=[IMAGE])


def test_postscript_is_no_image(images: Path) -> None:
    """Pillow would have Ghostscript run it."""
    program = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n"
    (images / "7" / "9.png").write_bytes(program)
    refused("data-format", "9.png", "cannot identify image file", source=images, inputs=[IMAGE])


def test_every_image_is_opened_by_format() -> None:
    calls = [call for path in package_files() for call in re.findall(r"Image\.open\(.*", path.read_text("utf-8"))]
    assert calls
    assert [call for call in calls if "formats=IMAGE_FORMATS" not in call] == []


def test_images_of_another_size_than_the_model(images: Path) -> None:
    refused(
        "data-shape",
        "'image' (float32[N, 3, 8, 8])",
        "[6, 3, 4, 4]",
        source=images,
        inputs=[IMAGE],
        preprocess=parse("resize=4x4"),
    )


def test_random_data() -> None:
    inputs = [X, InputInfo("ids", "int64", ("N", "length")), InputInfo("mask", "bool", (1, None))]
    data = random_data(inputs, 2, seed=3, sizes={"length": 5})
    first, again = list(data), list(data)
    assert [array.shape for array in first[0].values()] == [(1, 4), (1, 5), (1, 32)]
    assert all(np.array_equal(a[n], b[n]) for a, b in zip(first, again, strict=True) for n in a)
    assert set(np.unique(first[0]["ids"])) <= {0, 1}
    with pytest.raises(DataError, match="no random values"):
        list(random_data([InputInfo("text", "object", (1,))], 1))
    with pytest.raises(ModelError, match="more than 4 GB"):
        list(random_data([InputInfo("x", "float32", (2**40, 8))], 1))


def test_names() -> None:
    refused(
        "data-input-name",
        "the arrays",
        "'x' is missing",
        "'z' is no input",
        "float32[N, 4]",
        source={"z": samples(2)},
        inputs=[X],
    )
    refused(
        "data-input-name",
        "batch 0",
        "'b' is missing",
        source=[{"x": samples(2)}],
        inputs=[X, InputInfo("b", "float32", None)],
    )


def test_the_only_array_needs_no_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", samples(2), labels=np.arange(2))
    assert [list(feeds) for feeds, _ in open_data(tmp_path / "data.npz", [X]).labelled()] == [["x"]]
    other = InputInfo("b", "float32", None)
    refused("data-input-name", "'arr_0' is no input", source=tmp_path / "data.npz", inputs=[X, other])


def test_shapes(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=samples(2, 5))
    refused("data-shape", "data.npz", "'x' (float32[N, 4])", "[2, 5]", source=tmp_path / "data.npz", inputs=[X])
    refused("data-shape", "[2, 4, 4]", source=[samples(2, 4, 4)], inputs=[X])
    refused("data-shape", "[4, 5]", source=[samples(4, 5)], inputs=[ONE_BY_ONE])
    b = InputInfo("b", "float32", ("N", 4))
    refused("data-shape", "first axes", source={"x": samples(2), "b": samples(3)}, inputs=[X, b])
    static = [ONE_BY_ONE, InputInfo("b", "float32", (1, 4))]
    refused("data-shape", "differ in batch size", source=[{"x": samples(2), "b": samples(3)}], inputs=static)
    wide = InputInfo("x", "float32", (2, None))
    refused("data-shape", "cannot share a batch", source=[samples(1, 4), samples(1, 5)], inputs=[wide])


def test_types() -> None:
    (feeds,) = open_data([samples(2).astype(np.float64)], [X])
    assert feeds["x"].dtype == np.float32
    ids = InputInfo("x", "int64", ("N", 4))
    (feeds,) = open_data([np.ones((2, 4), np.int32)], [ids])
    assert feeds["x"].dtype == np.int64
    refused("data-format", "'x' (float32[N, 4])", "uint8", source=[np.ones((2, 4), np.uint8)], inputs=[X])
    refused("data-format", "int64", "float32", source=[samples(2)], inputs=[ids])


def test_labels() -> None:
    refused("data-labels", "[3] for 2 samples", source=[(samples(2), np.arange(3))], inputs=[X])
    refused("data-labels", source={"x": samples(2), "y": np.arange(3)}, inputs=[X])
    refused(
        "data-labels",
        "some have none",
        source=[(samples(1), np.arange(1)), samples(2)],
        inputs=[InputInfo("x", "float32", (2, 4))],
    )


def test_files_that_are_no_data(tmp_path: Path) -> None:
    (tmp_path / "bad.npz").write_bytes(b"PK\x03\x04nonsense")
    (tmp_path / "bad.npy").write_bytes(b"")
    (tmp_path / "data.csv").write_text("1,2")
    np.savez(tmp_path / "pickle.npz", x=np.array([{}], object))
    np.savez_compressed(tmp_path / "damaged.npz", x=np.arange(4096, dtype=np.float32))
    content = bytearray((tmp_path / "damaged.npz").read_bytes())
    content[100:200] = bytes(100)
    (tmp_path / "damaged.npz").write_bytes(content)
    np.save(tmp_path / "large.npy", np.zeros((8, 3, 16), np.float32))
    content = bytearray((tmp_path / "large.npy").read_bytes().replace(b"(8, 3, 16)", b"(-8, 3, 6)"))
    (tmp_path / "large.npy").write_bytes(content)
    np.savez(tmp_path / "large.npz", x=np.zeros((8, 3, 16), np.float32))
    content = bytearray((tmp_path / "large.npz").read_bytes().replace(b"(8, 3, 16)", b"(-8, 3, 6)"))
    (tmp_path / "large.npz").write_bytes(content)
    np.save(tmp_path / "pickle.npy", np.array([{}], object))
    for name in ("bad.npz", "bad.npy", "data.csv", "pickle.npz", "pickle.npy", "damaged.npz", "large.npy", "large.npz"):
        refused("data-format", name, source=tmp_path / name, inputs=[X])
    refused("data-not-found", "nowhere", source=str(tmp_path / "nowhere"), inputs=[X])
    (tmp_path / "empty").mkdir()
    refused("data-missing", "holds no images", source=tmp_path / "empty", inputs=[X])
    refused("data-missing", "no sample", source=[], inputs=[X])


def test_functions_that_fail() -> None:
    refused("data-not-found", "No module named 'no_such'", source="no_such:f", inputs=[X])
    refused("data-not-found", "has no attribute 'f'", source=f"{HERE}:f", inputs=[X])
    refused("data-format", "int, not a function", source=f"{HERE}:NOT_A_FUNCTION", inputs=[X])
    refused("data-format", "batch 1 failed: RuntimeError: disk on fire", source=f"{HERE}:broken", inputs=[X])
    refused("data-format", "yields no batches", source=lambda: 3, inputs=[X])
    refused("data-format", "cannot read batches from int", source=3, inputs=[X])
    refused("data-format", "not a dict", source=[(samples(1), samples(1), samples(1))], inputs=[X])


def test_options() -> None:
    with pytest.raises(UsageError, match="at least 1"):
        open_data(samples(2), [X], limit=0)


@pytest.mark.parametrize("stream", [[np.ones((1, 4), np.float32)] * 3, [np.ones((3, 4), np.float32)]])
def test_identical_samples_are_remarked(stream: Any) -> None:
    data = open_data(stream, [X])
    for _ in range(2):
        list(data)
    assert [remark.message for remark in data.remarks] == [
        "all 3 samples of the list are identical: ranges from them mean little"
    ]


def test_different_samples_are_not_remarked() -> None:
    for stream in ([samples(1), samples(2)], [samples(1), samples(1, 5)], [samples(1)]):
        data = open_data(stream, [InputInfo("x", "float32", ("N", None))])
        list(data)
        assert data.remarks == []


def test_data_passes_through() -> None:
    data = random_data([X], 1)
    assert open_data(data, [X]) is data


def test_numbers_of_another_byte_order() -> None:
    (feeds,) = open_data(samples(3).astype(">f4"), [X])
    assert feeds["x"].dtype.isnative
    np.testing.assert_array_equal(feeds["x"], samples(3))


def test_the_other_layout_is_named() -> None:
    with pytest.raises(DataError) as caught:
        list(open_data(samples(2, 8, 8, 3), [IMAGE]))
    assert "(0, 3, 1, 2)" in caught.value.hint


def test_compressed_arrays_are_not_unpacked_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, inputs = tmp_path / "zeros.npz", [InputInfo("x", "float32", (None, 1024))]
    np.savez_compressed(path, x=np.zeros((2048, 1024), np.float32))
    assert open_data(path, inputs).samples == 2048
    monkeypatch.setenv("ONNXQAT_MEMORY_LIMIT", "0.007")
    with pytest.raises(DataError, match=r"take 0\.00781 GB once they are unpacked") as caught:
        open_data(path, inputs)
    assert caught.value.code == "data-format"
    np.savez(path, x=np.zeros((2048, 1024), np.float32))
    assert open_data(path, inputs).samples == 2048


@pytest.mark.parametrize(
    ("shapes", "samples"),
    [
        ([(4, 3), (4,), ()], 4),
        ([(), ()], 1),
        ([(1, 576), (2, 1, 128)], 1),  # a window, and a state of two layers
        ([(20, 576), (1, 1, 128)], 1),  # a sequence, and the state that it starts from
    ],
)
def test_samples_are_what_all_inputs_have(shapes: list[tuple[int, ...]], samples: int) -> None:
    assert samples_of({str(i): np.zeros(shape, np.float32) for i, shape in enumerate(shapes)}) == samples
