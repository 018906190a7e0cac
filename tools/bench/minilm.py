"""all-MiniLM-L6-v2 as plain torch, with the weights of a safetensors file, exported to ONNX.

A BERT encoder (Devlin et al., 2018, arXiv:1810.04805) with mean pooling over the tokens and unit length, as sentence
embeddings are made from it (Reimers and Gurevych, 2019, arXiv:1908.10084).
"""

from __future__ import annotations

import pathlib
import warnings

import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional

EPSILON = 1e-12
HEADS = 12


class Layer(nn.Module):
    """One encoder layer: self-attention, then two linear layers, each with a residual and a normalization."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.query, self.key, self.value, self.attended = (nn.Linear(hidden, hidden) for _ in range(4))
        self.widen, self.narrow = nn.Linear(hidden, inner), nn.Linear(inner, hidden)
        self.first_norm, self.second_norm = nn.LayerNorm(hidden, EPSILON), nn.LayerNorm(hidden, EPSILON)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """`x` (batch, tokens, hidden); `mask` (batch, 1, 1, tokens), added to the scores."""
        batch, tokens, hidden = x.shape
        split = [
            part(x).reshape(batch, tokens, HEADS, hidden // HEADS).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        ]
        scores = split[0] @ split[1].transpose(2, 3) / (hidden // HEADS) ** 0.5 + mask
        mixed = (scores.softmax(-1) @ split[2]).transpose(1, 2).reshape(batch, tokens, hidden)
        x = self.first_norm(x + self.attended(mixed))
        normalized: torch.Tensor = self.second_norm(x + self.narrow(functional.gelu(self.widen(x))))
        return normalized


class MiniLM(nn.Module):
    """Token ids and attention mask (batch, tokens) to hidden states and sentence embeddings (batch, 384)."""

    def __init__(self, weights: dict[str, torch.Tensor]) -> None:
        super().__init__()
        words = weights["embeddings.word_embeddings.weight"]
        positions = weights["embeddings.position_embeddings.weight"]
        types = weights["embeddings.token_type_embeddings.weight"]
        hidden = words.shape[1]
        self.words, self.positions = nn.Embedding.from_pretrained(words), nn.Embedding.from_pretrained(positions)
        self.segment = nn.Parameter(types[0].clone())  # one segment: all tokens are of type 0
        self.norm = nn.LayerNorm(hidden, EPSILON)
        count = 1 + max(int(key.split(".")[2]) for key in weights if key.startswith("encoder.layer."))
        inner = weights["encoder.layer.0.intermediate.dense.weight"].shape[0]
        self.layers = nn.ModuleList(Layer(hidden, inner) for _ in range(count))
        _fill(self.norm, weights, "embeddings.LayerNorm")
        for index, layer in enumerate(self.layers):
            for ours, theirs in NAMES.items():
                _fill(layer.get_submodule(ours), weights, f"encoder.layer.{index}.{theirs}")

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Both int64 (batch, tokens)."""
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = self.norm(self.words(input_ids) + self.positions(places) + self.segment)
        kept = attention_mask.to(x.dtype)
        mask = (1.0 - kept)[:, None, None, :] * torch.finfo(x.dtype).min
        for layer in self.layers:
            x = layer(x, mask)
        pooled = (x * kept[:, :, None]).sum(1) / kept.sum(1, keepdim=True).clamp(min=1e-9)
        return x, functional.normalize(pooled, dim=1)


NAMES = {
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "attended": "attention.output.dense",
    "first_norm": "attention.output.LayerNorm",
    "widen": "intermediate.dense",
    "narrow": "output.dense",
    "second_norm": "output.LayerNorm",
}


def _fill(module: nn.Module, weights: dict[str, torch.Tensor], prefix: str) -> None:
    module.load_state_dict({"weight": weights[f"{prefix}.weight"], "bias": weights[f"{prefix}.bias"]})


def export(weights: pathlib.Path, target: pathlib.Path, *, dynamo: bool) -> None:
    """Write the ONNX file with dynamic batch and sequence, by torch's newer (`dynamo`) or older exporter."""
    model = MiniLM(load_file(weights)).eval()
    ids = torch.randint(1000, 20000, (2, 11))
    given = (ids, torch.ones_like(ids))
    options = {"input_names": ["input_ids", "attention_mask"], "output_names": ["hidden", "sentence"]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if dynamo:
            axes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("sequence")}
            torch.onnx.export(
                model,
                given,
                target,
                dynamo=True,
                dynamic_shapes=(axes, axes),
                external_data=False,
                verbose=False,
                **options,
            )
            return
        names = {0: "batch", 1: "sequence"}
        free = {"input_ids": names, "attention_mask": names, "hidden": names, "sentence": {0: "batch"}}
        torch.onnx.export(model, given, target, dynamo=False, opset_version=17, dynamic_axes=free, **options)
