"""Values that differ between execution on integers and onnxruntime's default session, on real data.

    python tools/bench/integer_equality.py [--images N] [--steps N] [--again] [resnet20] [mobilenetv2] ...

Files are those of the table's defaults, made once and kept; ``--again`` makes them again. One line a network: differing
output values of the module in float simulation and in integers, differing codes of all tensors that the default
session holds as codes, and the same after training steps against the float model's outputs, with the seconds of
processor time that a step takes. Where a processor has no VNNI, the session keeps u8 x s8 products from saturating
(``session.x64quantprecision``).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
import _shared

RUNS = _shared.ROOT / "runs" / "integer_equality"
NETWORKS = {
    "resnet20": ("resnet20_cifar10_bn", "cifar10"),
    "mobilenetv2": ("mobilenetv2_imagenet_bn", "imagenet"),
    "efficientnet": ("efficientnet_lite0_imagenet", "imagenet-lite"),
    "dscnn": ("dscnn_kws_bn", "kws"),
    "yolox": ("yolox_nano_coco_416", "yolox"),
    "nanodet": ("nanodet_coco_320", "nanodet"),
}
DETECTORS = ("yolox", "nanodet")
BATCH = 10


def inputs(task: str, images: int) -> tuple[np.ndarray, np.ndarray]:
    """Calibration and test inputs, preprocessed; those of detectors are the same images, none of which is scored here."""
    suite = _shared.scorer()
    if task in DETECTORS:
        found = np.concatenate(
            [suite.detector_input(task, image)[0] for image, *_ in suite.coco128()][: max(images, 16)]
        )
        return found[:16], found[:images]
    calibration, test, _ = suite.split(task)
    prepare = suite.PREPROCESS[task]
    return prepare(calibration[:100]), prepare(test[:images])


def session(model: Any, **settings: Any) -> Any:
    """The default session of a path or of bytes; `settings` are attributes of its options."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "1")
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    for name, value in settings.items():
        setattr(options, name, value)
    # Where the channels lie changes no number, and names of tensors stay those of the file.
    return ort.InferenceSession(
        model, options, providers=["CPUExecutionProvider"], disabled_optimizers=["NhwcTransformer"]
    )


class Kernels:
    """The default session's kernels with all codes that they give.

    Attributes:
        tensors: code tensor of the session -> tensor of the file that it is the codes of.
    """

    def __init__(self, path: Path) -> None:
        import onnx
        import onnxruntime as ort

        from onnxqat.graph import io, qdq

        optimized = path.with_suffix(".optimized.onnx")
        session(str(path), optimized_model_filepath=str(optimized))
        model = onnx.load(optimized)
        quantizers = [q for q in qdq.quantizers(io.load(path)) if q.role == "activation" and not q.stored]
        # What DequantizeLinear reads: the codes of a grid of fewer bits are cut by a Clip behind QuantizeLinear.
        stated = {str(q.nodes[-1].inputs[0].name): q.tensor for q in quantizers}
        made = {name for node in model.graph.node for name in node.output}
        self.tensors = {name: tensor for name, tensor in stated.items() if name in made}
        outputs = {value.name for value in model.graph.output}
        model.graph.output.extend(onnx.ValueInfoProto(name=n) for n in self.tensors if n not in outputs)
        plain = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        self.runtime = session(model.SerializeToString(), graph_optimization_level=plain)

    def run(self, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Outputs and codes by name."""
        names = [value.name for value in self.runtime.get_outputs()]
        return dict(zip(names, self.runtime.run(None, feeds), strict=True))


@dataclasses.dataclass
class Count:
    """Values compared, and those that differ."""

    values: int = 0
    differing: int = 0

    def add(self, mine: np.ndarray, theirs: np.ndarray) -> None:
        """Compare one array."""
        self.values += theirs.size
        self.differing += int(np.count_nonzero(mine != theirs))


def compared(path: Path, name: str, test: np.ndarray, batch: int, module: Any = None) -> dict[str, Any]:
    """Differing values of execution in integers, and those of `module`'s outputs, which is trained on the same file."""
    import torch

    import onnxqat

    executed, kernels, default = onnxqat.to_integer(path), Kernels(path), session(str(path))
    outputs, codes, own = Count(), Count(), Count()
    tensors: dict[str, Count] = {}
    for start in range(0, len(test), batch):
        part = {name: test[start : start + batch]}
        found, inner = executed.run(part), kernels.run(part)
        for value, theirs in zip(default.get_outputs(), default.run(None, part), strict=True):
            outputs.add(found.outputs[value.name], theirs)
        for code, tensor in kernels.tensors.items():
            codes.add(found.codes[tensor], inner[code])
            tensors.setdefault(tensor, Count()).add(found.codes[tensor], inner[code])
        if module is not None:
            with torch.no_grad():
                given = module.eval()(torch.from_numpy(part[name]))
            for mine, value in zip(given if isinstance(given, tuple) else (given,), default.get_outputs(), strict=True):
                own.add(mine.numpy(), default.run([value.name], part)[0])
    row = {"values": outputs.values, "integers": outputs.differing, "codes": codes.values}
    row |= {"codes_differing": codes.differing, "tensors": len(tensors)}
    first = next((tensor for tensor, count in tensors.items() if count.differing), None)
    return row | ({} if first is None else {"first": first}) | ({} if module is None else {"module": own.differing})


def train(module: Any, teacher: Any, data: np.ndarray, steps: int, batch: int) -> float:
    """Seconds of processor time that the median step takes."""
    import torch

    optimizer, taken = torch.optim.AdamW(module.train().parameters(), lr=1e-5), list[float]()
    rng = np.random.default_rng(0)
    for _ in range(steps):
        x = torch.from_numpy(data[rng.choice(len(data), batch, replace=False)])
        with torch.no_grad():
            wanted = teacher(x)
        start = time.process_time()
        found = module(x)
        pairs = zip(found, wanted, strict=True) if isinstance(found, tuple) else [(found, wanted)]
        loss = torch.stack([torch.nn.functional.mse_loss(a, b) for a, b in pairs]).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        taken.append(time.process_time() - start)
    return float(np.median(taken))


def run(network: str, images: int, steps: int, *, again: bool) -> dict[str, Any]:
    """One line of the table."""
    import onnxqat
    from onnxqat.data.inputs import of_graph
    from onnxqat.graph import io

    model, task = NETWORKS[network]
    source, made = _shared.MODELS / f"{model}.onnx", RUNS / f"{network}.qdq.onnx"
    name = of_graph(io.load(source).graph)[0].name
    calibration, test = inputs(task, images)
    batch = 1 if task in DETECTORS else BATCH
    if again or not made.exists():
        onnxqat.insert_qdq(source, "onnxruntime-cpu", data={name: calibration}, output=made)
    simulated, exact = onnxqat.to_torch(made), onnxqat.to_torch(made, arithmetic="onnxruntime")
    row: dict[str, Any] = {"network": network, "images": len(test)}
    row["simulated"] = compared(made, name, test[: 4 * batch], batch, simulated)["module"]
    row |= compared(made, name, test, batch, exact)
    if steps:
        teacher, tuned = onnxqat.to_torch(source), RUNS / f"{network}.tuned.onnx"
        plain = train(simulated, teacher, calibration, min(steps, 12), batch)
        taken = train(exact, teacher, calibration, steps, batch)
        onnxqat.write_back(exact.eval(), made, tuned)
        row |= {f"trained_{key}": value for key, value in compared(tuned, name, test, batch, exact).items()}
        row |= {"step_simulated_s": round(plain, 3), "step_integers_s": round(taken, 3)}
    return row


def main() -> None:
    """Run the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help=", ".join(NETWORKS))
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--again", action="store_true", help="make the files again")
    arguments = parser.parse_args()
    RUNS.mkdir(parents=True, exist_ok=True)
    for network in arguments.networks or NETWORKS:
        print(json.dumps(run(network, arguments.images, arguments.steps, again=arguments.again)), flush=True)


if __name__ == "__main__":
    main()
