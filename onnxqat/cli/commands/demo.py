"""``onnxqat demo``."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from onnxqat.cli import _options

if TYPE_CHECKING:
    from onnxqat.deployment.result import HandoffReport
    from onnxqat.graph.own_files import OwnFiles
    from onnxqat.validation.result import ValidationReport

COMMAND = ["onnxqat", "demo"]
BACKEND = "onnxruntime-cpu"
FEW_BITS = 2
"""Bits at which calibration alone loses points on the digits, and training wins them back, whatever the processor."""
EPOCHS, BATCH = 12, 64
SHOWN = 64
"""Test images whose histograms and noise are on the page, as `onnxqat report` takes by itself."""
PICTURES = 320
"""Training images that are also written as files: enough to calibrate, and to train on for a try."""
FILES = {
    "float": "model.onnx",
    "w8a8": "model.qdq.onnx",
    "w2a2": "w2a2.qdq.onnx",
    "w2a2_tuned": "tuned.qdq.onnx",
}
"""Names as the README and the pages of the documentation have them, so that their commands run in the folder."""
BUNDLES = {"w8a8": "bundle", "w2a2": "bundle_w2a2", "w2a2_tuned": "bundle_tuned"}
DATA, TEST, IMAGES = "data.npz", "test.npz", "images"
REPORT = "report.html"
LOGS = "logs"
WRITTEN = (*FILES.values(), DATA, IMAGES, TEST, LOGS, *BUNDLES.values(), REPORT)
"""Files and folders that the demo writes; what was changed or made under these names by others, it does not replace."""


@click.command
@click.option("-o", "--output", type=_options.FOLDER, default="onnxqat-demo", help="Folder to write the files to.")
@_options.as_json
def run(output: Path, as_json: bool) -> None:
    """Run the whole pipeline on handwritten digits in about a minute: train, quantize, fine-tune, validate, hand off.

    Example: onnxqat demo -o onnxqat-demo
    """
    _options.need("torch", "demo")
    _options.need("sklearn", "demo")
    with _one_thread():
        _run(output, as_json=as_json)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Compute in one thread of torch: the net is too small for more, whose sums would also depend on their number."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _run(output: Path, *, as_json: bool) -> None:
    """Take one small model the whole way in `output`; every step writes the files that the documentation names."""
    import numpy as np

    from onnxqat.cli import _output
    from onnxqat.graph import atomic
    from onnxqat.graph.own_files import OwnFiles
    from onnxqat.report import build
    from onnxqat.training import digits

    files = {name: output / file for name, file in FILES.items()}
    own = OwnFiles(output, COMMAND)
    own.check(WRITTEN)
    atomic.make_folder(output)
    images, labels = digits.load()
    test, data = {"image": images["test"], "labels": labels["test"]}, output / TEST
    with _options.phases(quiet=as_json) as phase:
        phase("train a float model")
        net = digits.train(images["train"], labels["train"])
        with own.writing(FILES["float"], DATA, IMAGES, TEST):
            digits.export(net, files["float"])
            np.savez(data, image=images["test"], labels=labels["test"])
            digits.write_samples(output, images["train"], labels["train"], PICTURES)
        phase("insert Q/DQ pairs, 8 and 2 bits")
        for name, bits in (("w8a8", 8), ("w2a2", FEW_BITS)):
            with own.writing(FILES[name]):
                _insert(files["float"], files[name], images["train"], bits=bits)
        phase("fine-tune 2 bits")
        with own.writing(FILES["w2a2_tuned"], LOGS):
            _finetune(files, images["train"], labels["train"], output / LOGS)
        phase("validate")
        proofs = {name: _prove(files, name, test) for name in BUNDLES}
        phase("hand off")
        bundles = {name: _hand_off(files, name, test, own) for name in BUNDLES}
        page = output / REPORT
        phase("report")
        with own.writing(REPORT):
            _page(files, proofs["w2a2_tuned"], bundles["w2a2_tuned"], data, output / LOGS, page)
    rows = [_float_row(proofs["w8a8"]), *(_row(name, proofs[name], bundles[name]) for name in BUNDLES)]
    following = f"onnxqat validate {files['float']} {files['w2a2_tuned']} --data {data}"
    written = [str(output / name) for name in WRITTEN]
    _output.show(build.from_demo(rows, files=written, next_command=following), as_json=as_json)


def _insert(source: Path, target: Path, images: Any, *, bits: int) -> None:
    from onnxqat.insertion.insert import insert_qdq
    from onnxqat.placement.table_overrides import Overrides

    overrides = Overrides()
    if bits < 8:
        overrides = Overrides(weight_bits=bits, activation_bits=bits, first_last_bits=8, observer="mse")
    insert_qdq(source, BACKEND, data={"image": images[:256]}, output=target, overrides=overrides)


def _finetune(files: dict[str, Path], images: Any, labels: Any, folder: Path) -> None:
    from onnxqat.training.callbacks.logs import logs
    from onnxqat.training.finetune import finetune

    finetune(
        files["w2a2"],
        {"image": images},
        labels=labels,
        teacher=files["float"],
        epochs=EPOCHS,
        batch_size=BATCH,
        output=files["w2a2_tuned"],
        callbacks=logs(folder),
    )


def _prove(files: dict[str, Path], name: str, data: Any) -> ValidationReport:
    from onnxqat.validation.validate import validate

    return validate(files["float"], files[name], data, batch_size=128)


def _hand_off(files: dict[str, Path], name: str, data: Any, own: OwnFiles) -> HandoffReport:
    from onnxqat.deployment.handoff import handoff

    with own.writing(BUNDLES[name]):
        return handoff(files[name], BACKEND, own.folder / BUNDLES[name], data={"image": data["image"]})


def _page(
    files: dict[str, Path], proof: ValidationReport, bundle: HandoffReport, data: Path, folder: Path, page: Path
) -> None:
    """Write the interactive page about the tuned file, with all that the demo measured."""
    from onnxqat.report import build_handoff, build_profile, build_validation, json
    from onnxqat.report.model_report.build import model_report
    from onnxqat.validation.profile import profile

    measured = profile(files["float"], files["w2a2_tuned"], data, limit=SHOWN)
    found = {
        "validate": build_validation.from_validation(proof),
        "handoff": build_handoff.from_handoff(bundle),
        "profile": build_profile.from_profile(measured),
    }
    with tempfile.TemporaryDirectory() as scratch:
        results = [Path(scratch, f"{name}.json") for name in found]
        for path, report in zip(results, found.values(), strict=True):
            path.write_text(json.dumps(report), encoding="utf-8")
        options: dict[str, Any] = {"float_model": files["float"], "before": files["w2a2"]}
        variants = {"8 bits": files["w8a8"]}
        shown = model_report(
            files["w2a2_tuned"], data, variants=variants, results=[*results, folder], limit=SHOWN, **options
        )
        shown.save(page)


def _row(name: str, proof: ValidationReport, bundle: HandoffReport) -> dict[str, Any]:
    from onnxqat.validation.result import DEFAULT, PLAIN

    covered = [c for c in bundle.coverage if c.total]
    return {
        "model": name.replace("_", " "),
        "top1": _top1(proof, PLAIN),
        "differ_as_written": _differing_top1(proof, PLAIN),
        "differ_default": _differing_top1(proof, DEFAULT),
        "integer": f"{sum(c.integer for c in covered)} of {sum(c.total for c in covered)}",
    }


def _float_row(proof: ValidationReport) -> dict[str, Any]:
    from onnxqat.validation.result import FLOAT

    return {
        "model": "float",
        "top1": _top1(proof, FLOAT),
        "differ_as_written": None,
        "differ_default": None,
        "integer": None,
    }


def _top1(proof: ValidationReport, run: str) -> float | None:
    return next((a.top1 for a in proof.accuracies if a.run == run), None)


def _differing_top1(proof: ValidationReport, against: str) -> int | None:
    from onnxqat.validation.result import TORCH

    return next((c.differing_top1 for c in proof.compared(TORCH, against)), None)
