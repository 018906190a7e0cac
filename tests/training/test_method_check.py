"""Methods are tried: every one of the package keeps its promises, and a broken one of a user's is told what it breaks."""

import textwrap
from pathlib import Path

import numpy as np
import pytest

from onnxqat.errors import UnsupportedError, UsageError
from onnxqat.training import methods
from onnxqat.training.config import ScoreConfig
from onnxqat.training.finetune import finetune
from onnxqat.training.methods import _check, _found
from tests.repetitions import some
from tests.training.test_dorefa import network

SCORES = iter(float(i) for i in range(100))


@pytest.mark.parametrize("name", methods.names())
def test_methods_of_the_package(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_check, "_compiles", lambda module: None)  # takes most of the time: the test below
    found = _check.check(name)
    assert [f"{f.name}: {f.message}" for f in found.findings if not f.passed] == []
    assert found.passed
    assert [f.name for f in found.findings] == [
        "parity",
        "gradient",
        "float",
        "copy",
        "compile",
        "export",
        "export stored",
    ]


@pytest.mark.parametrize("name", some(methods.names(), default=["lsq", "dsq"]))
def test_methods_of_the_package_compile(name: str) -> None:
    _check._compiles(_found.definition(name))


OWN = """
    import numpy as np
    import torch
    from onnxqat import numerics
    from onnxqat.training.methods import lsq


    class Method(lsq.Method):
        '''LSQ whose scales have four significant bits.'''

        def __init__(self, qparams, **described):
            super().__init__(qparams, **described)
            self.scale_bits = 4


    def reference(x, qparams):
        return numerics.fake_quantize(x, qparams)
"""


def write(folder: Path, text: str = OWN, name: str = "mine") -> str:
    path = folder / f"{name}.py"
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    return str(path)


def broken(folder: Path, old: str, new: str, name: str) -> set[str]:
    assert old in OWN
    found = _check.check(write(folder, OWN.replace(old, new), name))
    assert not found.passed
    return {f.name for f in found.findings if not f.passed and f.message}


def test_a_file_of_the_user(tmp_path: Path) -> None:
    path = write(tmp_path)
    assert _check.check(path).passed
    assert methods.method(path) is methods.method(path)
    model = network(4)
    data = np.random.default_rng(0).standard_normal((8, 2, 5, 5)).astype(np.float32)
    tuned = finetune(
        model, {"x": data}, method=path, max_steps=2, score=ScoreConfig(evaluate=lambda module: next(SCORES))
    ).model
    assert {entry.key: entry.value for entry in tuned.metadata_props}["onnxqat.method"] == "mine"


def test_broken_promises_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from onnxqat.training.methods import _check

    monkeypatch.setattr(_check, "_compiles", lambda module: None)
    assert broken(tmp_path, "def reference(", "def other(", "nameless") == {"parity"}
    assert "parity" in broken(tmp_path, "fake_quantize(x, qparams)", "fake_quantize(x, qparams) + 1e-3", "inexact")
    body = "self.scale_bits = 4\n\n        def quantize(self, x):\n            return super().quantize(x"
    assert {"parity", "export"} <= broken(tmp_path, "self.scale_bits = 4", f"{body} * 1.5)", "larger")
    frozen = "self.scale_bits = 4\n\n        def effective_scale(self):\n            return super().effective_scale().detach()"
    assert "gradient" in broken(tmp_path, "self.scale_bits = 4", frozen, "frozen")
    always = "self.scale_bits = 4\n\n        def forward(self, x):\n            return self.quantize(x)"
    assert broken(tmp_path, "self.scale_bits = 4", always, "always") == {"float"}


def test_what_is_no_method(tmp_path: Path) -> None:
    for name, text, said in (
        ("absent", None, "no method file"),
        ("wrong", "import torch, nothing_of_that_name", "ModuleNotFoundError"),
        ("empty", "Method = 3", "no class Method"),
    ):
        path = str(tmp_path / f"{name}.py") if text is None else write(tmp_path, text, name)
        with pytest.raises(UsageError, match=said) as error:
            methods.method(path)
        assert error.value.code == "option-invalid"


def test_entry_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, OWN, "vendor_method")
    home = tmp_path / "vendor-1.0.dist-info"
    home.mkdir()
    (home / "METADATA").write_text("Metadata-Version: 2.1\nName: vendor\nVersion: 1.0\n")
    (home / "entry_points.txt").write_text("[onnxqat.methods]\nshort-scales = vendor_method\nbroken = nowhere\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert methods.method("short-scales").__module__ == "vendor_method"
    with pytest.raises(UsageError, match="broken = 'nowhere'"):
        methods.method("broken")


@pytest.mark.parametrize("name", ["n2uq", "N2UQ", "apot", "nnie", "lq-nets"])
def test_methods_that_no_file_can_hold(name: str) -> None:
    with pytest.raises(UnsupportedError, match="equal steps") as error:
        methods.method(name)
    assert error.value.code == "quantizer-unsupported"
