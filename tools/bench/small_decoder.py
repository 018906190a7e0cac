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

import numpy as np
import torch
from torch import Tensor, nn

import onnxqat
from onnxqat.extend import Overrides
from onnxqat.generation.generate import Comparison, generate

VOCABULARY, WIDTH, HEADS, SHARED, LAYERS, LENGTH = 128, 96, 4, 2, 2, 96
HEAD = WIDTH // HEADS
RECIPE = "small-llm"


class RMSNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


def rotated(x: Tensor, positions: Tensor) -> Tensor:
    """Rotary embedding of (B, heads, T, HEAD) at `positions` (B, T)."""
    rates = 10000.0 ** (-torch.arange(0, HEAD, 2) / HEAD)
    angles = (positions.unsqueeze(-1).to(x.dtype) * rates).unsqueeze(1)
    cos, sin = torch.cat([angles.cos()] * 2, -1), torch.cat([angles.sin()] * 2, -1)
    one, two = x[..., : HEAD // 2], x[..., HEAD // 2 :]
    return x * cos + torch.cat([-two, one], -1) * sin


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.behind = RMSNorm(), RMSNorm()
        self.q = nn.Linear(WIDTH, WIDTH, bias=False)
        self.k = nn.Linear(WIDTH, SHARED * HEAD, bias=False)
        self.v = nn.Linear(WIDTH, SHARED * HEAD, bias=False)
        self.o = nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate, self.up = (nn.Linear(WIDTH, 2 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor, positions: Tensor, bias: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        batch, length, _ = x.shape
        y = self.before(x)
        q, k, v = (
            f(y).view(batch, length, heads, HEAD).transpose(1, 2)
            for f, heads in ((self.q, HEADS), (self.k, SHARED), (self.v, SHARED))
        )
        key = torch.cat([key, rotated(k, positions)], 2)
        value = torch.cat([value, v], 2)
        keys, values = (t.repeat_interleave(HEADS // SHARED, 1) for t in (key, value))
        scores = rotated(q, positions) @ keys.transpose(-1, -2) / HEAD**0.5 + bias
        mixed = (scores.softmax(-1) @ values).transpose(1, 2).reshape(batch, length, WIDTH)
        x = x + self.o(mixed)
        y = self.behind(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y)), key, value


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = RMSNorm()

    def forward(self, ids: Tensor, mask: Tensor, positions: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
        total, new = mask.shape[1], ids.shape[1]
        columns = torch.arange(total)
        hidden = columns.unsqueeze(0) > (columns[total - new :]).unsqueeze(1)
        bias = torch.where(hidden, torch.tensor(-1e4), torch.tensor(0.0))
        x = self.embedding(ids)
        present: list[Tensor] = []
        for index, layer in enumerate(self.layers):
            x, key, value = layer(x, positions, bias, past[2 * index], past[2 * index + 1])
            present += [key, value]
        return (self.norm(x) @ self.embedding.weight.T, *present)


def text() -> Tensor:
    folder = Path(sysconfig.get_paths()["stdlib"])
    files = sorted(folder.glob("*.py"))[:120]
    joined = "".join(f.read_text(encoding="utf-8", errors="ignore") for f in files)
    return torch.tensor([ord(c) for c in joined if ord(c) < VOCABULARY])


def empty(batch: int) -> list[Tensor]:
    return [torch.zeros(batch, SHARED, 0, HEAD) for _ in range(2 * LAYERS)]


def trained(tokens: Tensor, steps: int) -> Decoder:
    torch.manual_seed(0)
    net = Decoder()
    nn.init.normal_(net.embedding.weight, std=0.1)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, steps)
    positions = torch.arange(LENGTH).repeat(16, 1)
    for _ in range(steps):
        start = torch.randint(0, len(tokens) - LENGTH - 1, (16,))
        rows = torch.stack([tokens[s : s + LENGTH + 1] for s in start])
        logits = net(rows[:, :-1], torch.ones(16, LENGTH), positions, *empty(16))[0]
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return net.eval()


def export(net: Decoder, path: Path) -> None:
    past = [f"past_key_values.{i}.{kind}" for i in range(LAYERS) for kind in ("key", "value")]
    present = [f"present.{i}.{kind}" for i in range(LAYERS) for kind in ("key", "value")]
    axes = {"input_ids": {0: "batch", 1: "new"}, "attention_mask": {0: "batch", 1: "total"}}
    axes |= {"position_ids": {0: "batch", 1: "new"}, "logits": {0: "batch", 1: "new"}}
    axes |= {name: {0: "batch", 2: "past"} for name in past} | {name: {0: "batch", 2: "total"} for name in present}
    cached = [torch.zeros(2, SHARED, 3, HEAD) for _ in past]
    example = (
        torch.ones(2, 5, dtype=torch.int64),
        torch.ones(2, 8, dtype=torch.int64),
        torch.arange(3, 8).repeat(2, 1),
    )
    torch.onnx.export(
        net,
        (*example, *cached),
        str(path),
        dynamo=False,
        opset_version=17,
        input_names=["input_ids", "attention_mask", "position_ids", *past],
        output_names=["logits", *present],
        dynamic_axes=axes,
    )


def report(name: str, found: Comparison) -> None:
    assert found.perplexity[1] is not None
    alike = sum(same == 100 for same in found.same)
    print(
        f"{name:22} perplexity {found.perplexity[0]:.3f} -> {found.perplexity[1]:.3f}; 100 greedy tokens equal in "
        f"{alike} of {len(found.same)}, median of equal tokens {np.median(found.same):.0f}",
        flush=True,
    )


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
