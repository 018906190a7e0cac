"""Scores: quality of a model as one number, by a built-in metric or a function of the user's.

A score is called with a :class:`Predictor` and gives a number, higher is better. :func:`resolve` makes one of what the
user gives: the name of a metric, which is a file of this folder, ``module:function``, ``file.py:function``, or a
callable.
"""

from onnxqat.metrics._predictor import Predictor
from onnxqat.metrics._score import Score, ScoreSource, check_labels, listed, names, resolve
from onnxqat.metrics._scored import Comparing, Scored, compare

__all__ = [
    "Comparing",
    "Predictor",
    "Score",
    "ScoreSource",
    "Scored",
    "check_labels",
    "compare",
    "listed",
    "names",
    "resolve",
]
