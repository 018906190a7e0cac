"""The random generators that a step may draw from: torch's, numpy's global one and Python's."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclasses.dataclass(frozen=True)
class RandomState:
    """State of all of them.

    Attributes:
        cpu: torch's on the CPU, uint8.
        cuda: torch's on the present CUDA device, uint8; None without one.
        numpy: of ``numpy.random.get_state``; None where it is not known.
        python: of ``random.getstate``; None where it is not known.
    """

    cpu: Tensor
    cuda: Tensor | None = None
    numpy: Any = None
    python: Any = None

    @staticmethod
    def capture() -> RandomState:
        """The state now; no device is waited for."""
        cuda = torch.cuda.get_rng_state() if torch.cuda.is_available() else None
        return RandomState(torch.get_rng_state(), cuda, np.random.get_state(), random.getstate())  # noqa: NPY002

    def restore(self) -> None:
        """Set the generators to this state; those of CUDA only where there is a device."""
        torch.set_rng_state(self.cpu)
        if torch.cuda.is_available() and self.cuda is not None:
            torch.cuda.set_rng_state(self.cuda)
        if self.numpy is not None:
            np.random.set_state(self.numpy)  # noqa: NPY002
        if self.python is not None:
            random.setstate(self.python)

    def written(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The state as tensors and as JSON values, for a file."""
        tensors = {"cpu": self.cpu} if self.cuda is None else {"cpu": self.cpu, "cuda": self.cuda}
        kind, keys, position, has_gauss, gauss = self.numpy
        version, words, next_gauss = self.python
        tensors["numpy"] = torch.from_numpy(np.asarray(keys).astype(np.int64))
        tensors["python"] = torch.tensor(words, dtype=torch.int64)
        values = {"numpy": [kind, int(position), int(has_gauss), float(gauss)], "python": [version, next_gauss]}
        return tensors, values

    @staticmethod
    def read(tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> RandomState:
        """Read a state that :meth:`written` returned; a file with torch's states only leaves the others alone.

        Raises:
            ValueError: a generator does not take its state.
        """
        if "cpu" not in tensors:
            raise ValueError("torch's is missing")
        numpy, python = None, None
        if "numpy" in values and "numpy" in tensors:
            kind, position, has_gauss, gauss = values["numpy"]
            numpy = (kind, tensors["numpy"].numpy().astype(np.uint32), position, has_gauss, gauss)
        if "python" in values and "python" in tensors:
            version, next_gauss = values["python"]
            python = (version, tuple(tensors["python"].tolist()), next_gauss)
        found = RandomState(tensors["cpu"], tensors.get("cuda"), numpy, python)
        found._try()
        return found

    def _try(self) -> None:
        """Restore the states of generators that nobody uses, so that damage shows before anything is changed."""
        try:
            torch.Generator().set_state(self.cpu)
            if self.numpy is not None:
                np.random.RandomState().set_state(self.numpy)
            if self.python is not None:
                random.Random().setstate(self.python)
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise ValueError(str(error).partition("\n")[0]) from None
