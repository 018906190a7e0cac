"""GlobalAveragePool: the mean of each image."""

from __future__ import annotations

from collections.abc import Mapping

from onnxqat.integer_functions.functions._mean import Mean


class Function(Mean):
    """The mean over all places of an image; at most 65,536 of them."""

    operator = "GlobalAveragePool"
    attributes = ()
    reduces = False

    @classmethod
    def axes_of(cls, attributes: Mapping[str, object], rank: int | None) -> tuple[int, ...]:
        """See the base class: all axes behind those of samples and channels."""
        del attributes
        return () if rank is None else tuple(range(2 - rank, 0)) or (-1,)
