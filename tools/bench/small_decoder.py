"""A small decoder from training to greedy tokens: perplexity of float, W8A8 and 4-bit weights, and where tokens part.

Two layers with RMSNorm, rotary positions, grouped-query attention, SwiGLU and tied embeddings are trained on the text of
Python's own standard library, byte by byte, and exported with a cache of keys and values, as optimum names it.

python tools/bench/small_decoder.py FOLDER [--steps N] [--only KIND]

`--only small-llm` is the recipe of that name, with weights alone in blocks: one model, a minute of one core.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import sysconfig
from pathlib import Path

import torch
from decoder import Decoder, Sizes, export, report
from torch import Tensor, nn

import onnxqat
from onnxqat.extend import Overrides
from onnxqat.generation.generate import generate

SIZES = Sizes(vocabulary=128, width=96, inner=192, heads=4, shared=2, layers=2)
LENGTH = 96
RECIPE = "small-llm"


def text() -> Tensor:
    folder = Path(sysconfig.get_paths()["stdlib"])
    files = sorted(folder.glob("*.py"))[:120]
    joined = "".join(f.read_text(encoding="utf-8", errors="ignore") for f in files)
    return torch.tensor([ord(c) for c in joined if ord(c) < SIZES.vocabulary])


def trained(tokens: Tensor, steps: int) -> Decoder:
    torch.manual_seed(0)
    net = Decoder(SIZES)
    nn.init.normal_(net.embedding.weight, std=0.1)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, steps)
    positions = torch.arange(LENGTH).repeat(16, 1)
    for _ in range(steps):
        start = torch.randint(0, len(tokens) - LENGTH - 1, (16,))
        rows = torch.stack([tokens[s : s + LENGTH + 1] for s in start])
        logits = net(rows[:, :-1], torch.ones(16, LENGTH), positions, *net.empty(16))[0]
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return net.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=1500, help="Steps of training.")
    parser.add_argument("--only", action="append", help="Kind to measure [all of them]; repeat it.")
    asked = parser.parse_args()
    folder = asked.folder
    folder.mkdir(parents=True, exist_ok=True)
    model = folder / "decoder.onnx"
    tokens = text()
    part = len(tokens) * 9 // 10
    if not model.exists():
        export(trained(tokens[:part], asked.steps), model)
    rows = lambda first, count: tokens[first : first + count * 64].view(count, 64).numpy()  # noqa: E731
    test = {"input_ids": rows(part, 32)}
    steps = folder / "steps"
    if not steps.exists():
        generate(model, {"input_ids": rows(0, 64)}, tokens=16, batch_size=16, samples=steps)
    kinds: dict[str, dict[str, object]] = {
        "W8A8": {"data": steps},
        "W8A8 fast": {"data": steps, "fast": True},
        "4-bit weights": {"overrides": Overrides(weight_only="int4")},
        "4-bit weights, gptq": {"overrides": Overrides(weight_only="int4"), "data": steps, "rounding": "gptq"},
    }
    for name in asked.only or [RECIPE, *kinds]:
        written = folder / f"{name.replace(' ', '_').replace(',', '')}.onnx"
        if name == RECIPE:
            command = [sys.executable, "-m", "onnxqat", "recipes", "run", name, str(model), "-o", str(written)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            report(name, generate(model, test, written, tokens=100, batch_size=32))
            continue
        made = onnxqat.insert_qdq(model, output=written, **kinds[name])
        report(name, generate(model, test, made.model, tokens=100, batch_size=32))
        print("    quantizers:", made.quantizers)
        if made.trial is not None:
            print("    SQNR in dB:", {name: round(value, 1) for name, value in made.trial.sqnr_db.items()})
        for remark in made.remarks[:6]:
            print("   ", remark.source, remark.message[:160])


if __name__ == "__main__":
    main()
