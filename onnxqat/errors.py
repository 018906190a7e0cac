"""The exception tree.

::

    QatError                    anything onnxqat refuses or finds wrong; has a stable code
    ├── InputError              bad input or usage: the command ends with status 2, nothing is written
    │   ├── ModelError          the model file: unreadable, damaged, hostile, already quantized, ...
    │   ├── DataError           calibration, training or evaluation data
    │   ├── BackendError        a backend table: unknown, malformed, contradictory
    │   ├── UsageError          an option or argument
    │   └── UnsupportedError    an operator, type or attribute that onnxqat does not implement exactly
    └── CheckError              the work was done but a check failed: the command ends with status 1

Every code is listed, with cause and remedy, in ``docs/errors.md`` (a test keeps the two in step).
"""

from __future__ import annotations

from typing import Literal, get_args

ErrorCode = Literal[
    "model-not-found",
    "model-empty",
    "model-not-onnx",
    "model-invalid",
    "model-already-quantized",
    "model-not-quantized",
    "model-form",
    "scale-invalid",
    "model-external-data",
    "model-sparse-initializer",
    "model-graphsurgeon",
    "model-not-runnable",
    "model-too-large",
    "runtime-failed",
    "output-not-writable",
    "machine-limit",
    "input-changed",
    "code-exited",
    "data-missing",
    "data-not-found",
    "data-format",
    "data-shape",
    "data-input-name",
    "data-labels",
    "data-non-finite",
    "backend-unknown",
    "backend-table",
    "backend-opset",
    "backend-one-width",
    "target-refuses",
    "budget-too-small",
    "pattern-no-match",
    "option-invalid",
    "name-unknown",
    "dependency-missing",
    "environment-failed",
    "export-failed",
    "operator-unsupported",
    "quantizer-unsupported",
    "quantizer-uncalibrated",
    "pass-precondition",
    "pass-postcondition",
    "pass-failed",
    "extension-failed",
    "simplify-changed-function",
    "checkpoint-mismatch",
    "training-diverged",
    "distributed-failed",
    "quantized-not-finite",
    "accumulator-overflow",
    "parity-failed",
    "handoff-failed",
    "score-failed",
    "score-output",
]

ERROR_CODES: tuple[str, ...] = get_args(ErrorCode)


class QatError(Exception):
    """An error that a user can act on.

    Args:
        code: stable identifier, one of :data:`ERROR_CODES`; its section in ``docs/errors.md`` explains it.
        message: one line that says what is wrong, with the file, node or tensor concerned.
        hint: one line that says what to do about it.
    """

    exit_status = 1

    def __init__(self, code: ErrorCode, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.code: ErrorCode = code
        self.message = message
        self.hint = hint

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.code, self.message, self.hint))

    def __str__(self) -> str:
        return f"{self.message} [{self.code}]" + (f" ({self.hint})" if self.hint else "")


def _rebuild(cls: type[QatError], code: ErrorCode, message: str, hint: str) -> QatError:
    return cls(code, message, hint=hint)


class InputError(QatError):
    """Bad input or usage; exit status 2."""

    exit_status = 2


class ModelError(InputError):
    """The model file or graph."""


class DataError(InputError):
    """Calibration, training or evaluation data."""


class BackendError(InputError):
    """A backend table."""


class UsageError(InputError):
    """An option or argument."""


class UnsupportedError(InputError):
    """Something that onnxqat does not implement exactly and therefore refuses."""


class CheckError(QatError):
    """A check on finished work failed; exit status 1."""
