"""Check of the promises that every method makes: on quantizers alone and in a small network."""

from __future__ import annotations

import copy
import inspect
import io as streams
import pickle
import warnings
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import torch
from torch import Tensor

from onnxqat import extension, numerics
from onnxqat.bridge.export.write_back import put_back
from onnxqat.bridge.importing.importer import to_torch
from onnxqat.bridge.module import OnnxModule
from onnxqat.bridge.quantizers.fake_quantize import FakeQuantize
from onnxqat.bridge.quantizers.state import quantizers, set_state
from onnxqat.graph import io
from onnxqat.promises import BrokenError, ExtensionCheck, try_each
from onnxqat.runtime.session import Session
from onnxqat.training import methods
from onnxqat.training.methods import _found, _trial
from onnxqat.training.optim import optimizers
from onnxqat.types import FloatArray, QParams, QType, Role

STEPS = 4
CLOSE = 1e-4
"""Relative difference of whole networks between torch and onnxruntime, where no code differs."""


def check(name: str) -> ExtensionCheck:
    """Try a method: its name, or the path of its file.

    1. ``parity``: in eval mode, forward has the bits of the numpy function ``reference`` of its file, for activations and
       weights, per tensor and per channel, at 4 and 8 bits.
    2. ``gradient``: in train mode every learnable parameter gets one that is not zero, and so does the input.
    3. ``float``: with its quantizers off, the network is the float network, bit for bit.
    4. ``copy``: ``deepcopy``, ``pickle`` and a strict state dict give the same quantizer.
    5. ``compile``: ``torch.compile`` finds no graph break, and the result is the same.
    6. ``export``, ``export stored``: after some steps of training and write-back, the file's own quantizers give the
       bits that training saw, in torch, and onnxruntime gives the same numbers; for float weights and stored codes.

    Raises:
        UsageError: there is no such method; see :func:`onnxqat.training.methods.method`.
    """
    module = _found.definition(name)
    trials: dict[str, Callable[[], None]] = {
        "parity": lambda: _parity(module),
        "gradient": lambda: _gradient(module, name),
        "float": lambda: _float_state(name),
        "copy": lambda: _copies(module),
        "compile": lambda: _compiles(module),
        "export": lambda: _export(name, stored=False),
        "export stored": lambda: _export(name, stored=True),
    }
    return ExtensionCheck(extension.key_of(name), try_each({key: _seeded(trial) for key, trial in trials.items()}))


def _seeded(trial: Callable[[], None]) -> Callable[[], None]:
    """Return `trial` with the same random numbers at every call, and those of the caller as they were."""

    def run() -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            trial()

    return run


def _quantizers_of_each_kind(module: ModuleType) -> Iterator[tuple[str, FakeQuantize, Tensor]]:
    """Quantizers of each kind with an input, some of whose values are clipped."""
    for role, bits, signed, zero, axis in (
        ("activation", 8, False, 100, None),
        ("activation", 4, True, 0, None),
        ("weight", 4, True, 0, 0),
        ("weight", 8, True, 0, None),
    ):
        qtype = QType.of(bits, signed=signed)
        x = torch.randn(3, 50) * 2
        scale = np.asarray(x.abs().amax(1).numpy() if axis == 0 else x.abs().max().numpy(), np.float32) / (
            1.3 * qtype.quant_max / (1 if signed else 2)
        )
        scale = np.asarray(scale, np.float32)
        qparams = QParams(scale, np.full(scale.shape, zero, np.int64), qtype, axis)
        kind: Role = "weight" if role == "weight" else "activation"
        made = module.Method(qparams, tensor="x", role=kind)
        if role == "weight":
            made.start(x)
        yield f"{role}, {bits} bits", made, x


def _reference(module: ModuleType, quantizer: FakeQuantize, x: FloatArray) -> FloatArray:
    """Compute the method in numpy: by the file's ``reference``, or by the formula that every quantizer has."""
    own = getattr(module, "reference", None)
    if not inspect.isfunction(own):  # files of the package may have imported kernels.reference
        if not module.__name__.startswith(_found.PACKAGE):
            raise BrokenError("the file has no function reference(x, qparams) that computes the method in numpy")
        return numerics.fake_quantize(x, quantizer.qparams())
    asked = [p for p in inspect.signature(own).parameters if p not in ("x", "qparams")]
    state = {key: getattr(quantizer, key) for key in asked}
    arrays = {key: v.detach().numpy() if isinstance(v, Tensor) else v for key, v in state.items()}
    return np.asarray(own(x, quantizer.qparams(), **arrays), np.float32)


def _parity(module: ModuleType) -> None:
    for what, quantizer, x in _quantizers_of_each_kind(module):
        found = quantizer.eval()(x).detach().numpy()
        wanted = _reference(module, quantizer, x.numpy())
        if not np.array_equal(found, wanted):
            worst = float(np.abs(found - wanted).max())
            raise BrokenError(f"{what}: {int((found != wanted).sum())} values differ from numpy's, by {worst:.3g}")
        exported = quantizer.export_weight(x).detach().numpy()
        if not np.array_equal(numerics.fake_quantize(exported, quantizer.qparams()), found):
            raise BrokenError(
                f"{what}: the file's quantizer makes something else of what export_weight() gives the file"
            )


def _gradient(module: ModuleType, name: str) -> None:
    for what, quantizer, x in _quantizers_of_each_kind(module):
        inputs = x.clone().requires_grad_()
        (quantizer.train()(inputs) * torch.randn(x.shape)).sum().backward()
        missing = [k for k, p in quantizer.named_parameters() if p.requires_grad and not _is_there(p.grad)]
        if missing:
            raise BrokenError(f"{what}: parameter {missing[0]!r} gets no gradient")
        if not _is_there(inputs.grad) and not (quantizer.freezes_weights and quantizer.role == "weight"):
            raise BrokenError(f"{what}: the input gets no gradient")
    network = _network(name, stored=False).train()
    network(torch.from_numpy(_trial.data(1)[0])).square().sum().backward()
    for key, parameter in network.named_parameters():
        if parameter.requires_grad and not _is_there(parameter.grad):
            raise BrokenError(f"in a network, {key!r} gets no gradient")


def _is_there(gradient: Tensor | None) -> bool:
    return gradient is not None and bool(torch.isfinite(gradient).all()) and bool((gradient != 0).any())


def _network(name: str, *, stored: bool) -> OnnxModule:
    network = to_torch(_trial.model(stored=stored), quantizer_factory=methods.factory(name, limit_steps=False))
    methods.freeze_weights(network)
    return network


def _float_state(name: str) -> None:
    x = torch.from_numpy(_trial.data(1)[0])
    outputs = []
    for network in (_network(name, stored=False).train(), to_torch(_trial.model(stored=False))):
        set_state(network, "float")
        outputs.append(network(x).detach())
    if not torch.equal(*outputs):
        raise BrokenError("with its quantizers off, the network is not the float network")


def _copies(module: ModuleType) -> None:
    for what, quantizer, x in _quantizers_of_each_kind(module):
        fresh = copy.deepcopy(quantizer)
        with torch.no_grad():
            for tensor in fresh.state_dict().values():
                tensor.zero_()
        stream = streams.BytesIO()
        torch.save(quantizer.state_dict(), stream)
        stream.seek(0)
        fresh.load_state_dict(torch.load(stream), strict=True)
        wanted = quantizer.eval()(x)
        for way, other in {
            "deepcopy": copy.deepcopy(quantizer),
            "pickle": pickle.loads(pickle.dumps(quantizer)),
            "a state dict": fresh.eval(),
        }.items():
            if not torch.equal(other(x), wanted):
                raise BrokenError(f"{what}: {way} gives another quantizer")


def _compiles(module: ModuleType) -> None:
    for what, quantizer, x in list(_quantizers_of_each_kind(module))[::2]:  # an activation and a weight per channel
        torch.compiler.reset()  # every class and every grid counts as a recompilation of the one forward
        twin = copy.deepcopy(quantizer)
        results = []
        for run, own in ((twin, twin), (torch.compile(quantizer, fullgraph=True, backend="aot_eager"), quantizer)):
            torch.manual_seed(1)
            inputs = x.clone().requires_grad_()
            with warnings.catch_warnings():
                # Dynamo makes an instance of the class when it traces an autograd function.
                warnings.filterwarnings("ignore", message=".*autograd.function.Function.*should not be instantiated")
                output = run(inputs)
                output.square().sum().backward()
            gradients = [p.grad for p in own.parameters() if p.grad is not None]
            results.append([output.detach(), *([] if inputs.grad is None else [inputs.grad]), *gradients])
        for plain, other in zip(*results, strict=True):
            if not torch.allclose(plain, other, rtol=1e-4, atol=1e-5):
                raise BrokenError(f"{what}: compiled, it gives something else")
    torch.compiler.reset()


def _export(name: str, *, stored: bool) -> None:
    """Train, write back, and compare module, file and onnxruntime; an import without training must keep the file."""
    model = _trial.model(stored=stored)
    network = _network(name, stored=stored).train()
    _train(network)
    network.eval()
    tuned: onnx.ModelProto = put_back(network, model)
    if tuned == model:
        raise BrokenError(f"{STEPS} steps of training changed nothing in the file")
    x = _trial.data(STEPS + 1)[-1]
    with torch.no_grad():
        wanted = network(torch.from_numpy(x))
        found = to_torch(tuned)(torch.from_numpy(x))
    if not torch.equal(found, wanted):
        raise BrokenError(f"the file computes something else, by up to {float((found - wanted).abs().max()):.3g}")
    (by_runtime,) = Session(io.load(tuned), optimize=False).run({_trial.INPUT: x}).values()
    distance = float(np.abs(by_runtime - wanted.numpy()).max())
    if not distance <= CLOSE * float(wanted.abs().max()):
        raise BrokenError(f"onnxruntime computes something else, by up to {distance:.3g}")
    again: Any = put_back(to_torch(tuned), tuned)
    if again != tuned:
        raise BrokenError("the file that was written is changed by an import and write-back without training")


def _train(network: OnnxModule) -> None:
    """Some steps towards other outputs."""
    optimizer = optimizers.make("adam", network, learning_rate=0.01)
    guard = optimizers.ScaleGuard(network)
    for batch in _trial.data(STEPS):
        loss = (network(torch.from_numpy(batch)) - 1.0).square().mean()
        for _, quantizer in quantizers(network):
            penalty = quantizer.penalty(0.5)
            loss = loss if penalty is None else loss + penalty
        optimizer.zero_grad()
        loss.backward()
        guard.before()
        optimizer.step()
        guard.after()
