"""A graph and its weights are two files, and switch together; a killed process leaves nothing that the next one keeps."""

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from onnxqat.errors import ModelError
from onnxqat.graph import atomic, io, staging
from tests.passes.checks import parse

TEXT = "g (float[N,2] x) => (float[N,1000] y) <float[2,1000] w, float s = {1}> { m = MatMul(x, w) y = Mul(m, s) }"
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # the child does no more than write
posix = pytest.mark.skipif(sys.platform == "win32", reason="signals and locks of POSIX")


def scaled(factor: float) -> ir.Model:
    """The same function for every `factor`, with other numbers in the graph and in the weights."""
    model = io.load(
        parse(TEXT.replace("w, float s = {1}", f"w = {{{','.join(['1'] * 2000)}}}, float s = {{{1 / factor}}}"))
    )
    weight = model.graph.initializers["w"]
    weight.const_value = ir.tensor(np.full((2, 1000), factor, np.float32), name="w")
    return model


def product(path: Path) -> float:
    tensors = {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}
    return float((tensors["w"] * tensors["s"]).mean())


def killed(work: Callable[[], object]) -> None:
    """Run `work`, which kills its process, in a process of its own."""
    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL


def kill_at(function: Callable[..., object], call: int) -> Callable[..., object]:
    """`function`, that ends the process after its call number `call`."""
    calls = iter(range(1, call + 1))

    def run(*arguments: object, **keywords: object) -> object:
        result = function(*arguments, **keywords)
        if next(calls) == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    return run


@posix
@pytest.mark.parametrize("call", [1, 2])
def test_a_kill_after_either_rename_leaves_a_whole_model(tmp_path: Path, call: int) -> None:
    path = io.save(scaled(1.0), tmp_path / "m.onnx", external_data=True)

    def work() -> None:
        os.replace = kill_at(os.replace, call)  # type: ignore[assignment]
        io.save(scaled(4.0), path, external_data=True)

    killed(work)
    assert product(path) == 1.0
    assert any(p.name.startswith(".onnxqat-") for p in tmp_path.iterdir())
    io.save(scaled(2.0), path, external_data=True)
    assert product(path) == 1.0
    assert len(list(tmp_path.iterdir())) == 2


def test_weights_stay_where_another_graph_names_them(tmp_path: Path) -> None:
    path = io.save(scaled(1.0), tmp_path / "m.onnx", external_data=True)
    copy = tmp_path / "m.onnx.bak"
    copy.write_bytes(path.read_bytes())
    foreign = tmp_path / "m.onnx.data"
    foreign.write_bytes(b"of another tool")
    io.save(scaled(2.0), path, external_data=True)
    assert product(copy) == product(path) == 1.0
    copy.unlink()
    io.save(scaled(4.0), path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.onnx", "m.onnx.data"]
    assert foreign.read_bytes() == b"of another tool"


def test_weights_that_the_model_in_memory_reads_stay(tmp_path: Path) -> None:
    path = io.save(scaled(2.0), tmp_path / "m.onnx", external_data=True)
    model = io.load(path)
    io.save(model, path)
    assert float(model.graph.initializers["w"].const_value.numpy().mean()) == 2.0


def test_a_name_that_no_location_may_hold(tmp_path: Path) -> None:
    path = io.save(scaled(1.0), tmp_path / f"a:b\\c {'n' * 200}.onnx", external_data=True)
    assert io.load(path).graph.initializers["w"].const_value.numpy().shape == (2, 1000)


def test_a_protobuf_without_its_weights_is_refused(tmp_path: Path) -> None:
    path = io.save(scaled(1.0), tmp_path / "m.onnx", external_data=True)
    with pytest.raises(ModelError) as caught:
        io.save(onnx.load(path, load_external_data=False), tmp_path / "other.onnx")
    assert caught.value.code == "model-external-data"


def test_a_copy_has_weights_of_its_own(tmp_path: Path) -> None:
    path = io.save(scaled(1.0), tmp_path / "m.onnx", external_data=True)
    copy = io.copy(path, tmp_path / "copy.onnx")
    for data in tmp_path.glob("m.onnx.*"):
        data.unlink()
    assert product(copy) == 1.0


@posix
def test_folders_of_the_living_and_of_others_stay(tmp_path: Path) -> None:
    (tmp_path / ".onnxqat-demo").mkdir()
    (tmp_path / ".onnxqat-abcdefgh.part").mkdir()  # nobody holds its lock
    with staging.staging(tmp_path) as folder:
        atomic.write_atomic(tmp_path / "file", b"content")
        assert folder.is_dir()
    assert sorted(p.name for p in tmp_path.iterdir()) == [".onnxqat-demo", "file"]


def write_folder(output: Path, content: str) -> None:
    with atomic.staged_folder(output, lambda _: None) as folder:
        (folder / "file").write_text(content, encoding="utf-8")


def test_errors_name_the_folder_that_was_asked_for(tmp_path: Path) -> None:
    with pytest.raises(ModelError) as caught, atomic.staged_folder(tmp_path / "bundle", lambda _: None) as folder:
        io.save(scaled(1.0), folder / "none" / "m.onnx")
    assert caught.value.message.startswith(str(tmp_path / "bundle" / "none" / "m.onnx"))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_takes_the_place_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = tmp_path / "below" / "bundle"
    for exchange, content in ((True, "one"), (True, "two"), (False, "three")):
        if not exchange:
            monkeypatch.setattr(atomic, "_exchanged", lambda *_: False)
        write_folder(output, content)
        assert (output / "file").read_text(encoding="utf-8") == content
        assert [p.name for p in output.parent.iterdir()] == ["bundle"]


@pytest.mark.parametrize("exchange", [True, False])
def test_a_folder_that_must_stay_is_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchange: bool) -> None:
    def refuse(_: Path) -> None:
        raise ModelError("output-not-writable", "it must stay")

    output = tmp_path / "bundle"
    write_folder(output, "old")
    if not exchange:
        monkeypatch.setattr(atomic, "_exchanged", lambda *_: False)
    with pytest.raises(ModelError), atomic.staged_folder(output, refuse):
        pass
    assert (output / "file").read_text(encoding="utf-8") == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["bundle"]


@posix
@pytest.mark.parametrize("exchange", [True, False])
def test_a_kill_while_folders_change_places_loses_none(tmp_path: Path, exchange: bool) -> None:
    output = tmp_path / "bundle"
    write_folder(output, "old")

    def work() -> None:
        if exchange:
            atomic._exchanged = kill_at(atomic._exchanged, 1)  # type: ignore[assignment]
        else:
            atomic._exchanged = lambda *_: False  # type: ignore[assignment]
            os.rename = kill_at(atomic_rename, 1)  # type: ignore[assignment]
        write_folder(output, "new")

    atomic_rename = os.rename
    killed(work)
    atomic.write_atomic(tmp_path / "file", b"the next run")
    assert (output / "file").read_text(encoding="utf-8") in ("old", "new")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bundle", "file"]
