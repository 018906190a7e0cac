"""A decoder as its file shows it: tokens in, logits and a cache of keys and values out."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from onnxqat.analysis import caches
from onnxqat.data.inputs import InputInfo
from onnxqat.errors import UsageError

Array = npt.NDArray[Any]

IDS, MASK, POSITIONS, LOGITS = "input_ids", "attention_mask", "position_ids", "logits"


@dataclasses.dataclass(frozen=True)
class Decoder:
    """Roles of a decoder's inputs and outputs, by the names that optimum and onnxruntime-genai export.

    Attributes:
        ids: input of token ids, (B, T).
        mask: input that says which of the T positions so far count, None where there is none.
        positions: input of the positions of the tokens, None where there is none.
        logits: output of shape (B, T, V).
        past: inputs of the cache with the outputs that take their place in the next step; none where a step reads all
            tokens again.
    """

    ids: InputInfo
    mask: InputInfo | None
    positions: InputInfo | None
    logits: str
    past: tuple[tuple[InputInfo, str], ...]

    @classmethod
    def of(cls, inputs: Sequence[InputInfo], outputs: Sequence[str], what: str) -> Decoder:
        """Find the roles.

        Args:
            inputs: of the model.
            outputs: names of its outputs.
            what: what messages call it.

        Raises:
            UsageError: ``option-invalid``: an input that has no role, or no ids, logits or present for a past.
        """
        named = {info.name: info for info in inputs}
        past = []
        for info in inputs:
            if caches.is_past(info.name):
                present = caches.present_of(info.name, outputs)
                if present is None:
                    raise _no_decoder(what, f"no output takes the place of its cache {info.name!r}")
                past.append((info, present))
        missing = [name for name, found in ((IDS, named), (LOGITS, outputs)) if name not in found]
        if missing:
            listed = ", ".join(map(repr, (*named, *outputs)))
            raise _no_decoder(what, f"it has no {missing[0]!r} among its inputs and outputs, {listed}")
        strange = set(named) - {IDS, MASK, POSITIONS} - {info.name for info, _ in past}
        if strange:
            raise _no_decoder(what, f"its input {min(strange)!r} is not known")
        return cls(named[IDS], named.get(MASK), named.get(POSITIONS), LOGITS, tuple(past))

    @property
    def batch(self) -> int | None:
        """Number of sequences that the model prescribes."""
        size = self.ids.shape[0] if self.ids.shape else None
        return size if isinstance(size, int) else None

    def first(self, ids: Array) -> dict[str, Array]:
        """Return the feeds of tokens (B, T) without any before them."""
        feeds = self._tokens(ids, 0)
        for info, _ in self.past:
            feeds[info.name] = np.zeros(_empty(info, len(ids)), info.dtype)
        return feeds

    def following(self, ids: Array, before: int, outputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return the feeds of the tokens (B, T) behind `before` others, which left their cache in `outputs`."""
        feeds = self._tokens(ids, before)
        feeds.update({info.name: outputs[present] for info, present in self.past})
        return feeds

    def _tokens(self, ids: Array, before: int) -> dict[str, Array]:
        feeds: dict[str, Array] = {self.ids.name: ids.astype(self.ids.dtype)}
        end = before + ids.shape[1]
        if self.mask is not None:
            feeds[self.mask.name] = np.ones((len(ids), end), self.mask.dtype)
        if self.positions is not None:
            places = np.arange(before, end, dtype=self.positions.dtype)
            feeds[self.positions.name] = np.tile(places, (len(ids), 1))
        return feeds


def _empty(info: InputInfo, batch: int) -> tuple[int, ...]:
    """Return the shape of a cache without positions: open sizes are the batch, which is first, and the positions."""
    shape = info.shape or ()
    opened = (batch, *[0] * len(shape))
    return tuple(size if isinstance(size, int) else given for size, given in zip(shape, opened, strict=False))


def _no_decoder(what: str, why: str) -> UsageError:
    hint = (
        f"a decoder reads {IDS}, {MASK}, {POSITIONS} and past_key_values.*, and gives {LOGITS} and present.*, "
        "as optimum and onnxruntime-genai export it"
    )
    return UsageError("option-invalid", f"{what} is no decoder that can be run here: {why}", hint=hint)
