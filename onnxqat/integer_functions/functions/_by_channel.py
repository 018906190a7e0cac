"""Normalizations of images with one gamma and one beta for each channel."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from onnxqat.integer_functions.definition import Call, CodeGrid, Constants
from onnxqat.integer_functions.functions._normalization import Normalization


class ByChannel(Normalization, abc.ABC):
    """A normalization whose gamma and beta belong to channels, the second axis."""

    weights = ("gamma", "beta")
    has_axis = False
    centered = True

    @classmethod
    def axes_of(cls, attributes: Mapping[str, object], rank: int | None) -> tuple[int, ...]:
        """See the base class: all axes behind those of samples and channels."""
        del attributes
        return () if rank is None else tuple(range(2 - rank, 0)) or (-1,)

    def _weights(self, call: Call) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        gamma, beta = super()._weights(call)
        shape = (-1, *(1 for _ in call.axes))  # as they multiply
        return gamma.reshape(shape), beta.reshape(shape)

    def parameters(
        self, constants: Constants, grids: Sequence[CodeGrid], y: CodeGrid
    ) -> dict[str, npt.NDArray[np.float64]]:
        """See the base class."""
        return {name: value.reshape(-1) for name, value in super().parameters(constants, grids, y).items()}
