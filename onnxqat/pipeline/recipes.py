"""Recipes: names of passes in the order in which they run.

A name is that of a file of ``passes/``. Whether a pass has a part for a backend, and with which arguments, it says itself
in :meth:`onnxqat.passes._base.Pass.for_backend`. A new pass of onnxqat is its file and its name here.
"""

from __future__ import annotations

NAME = ("unique-names",)
"""In front of everything: nodes that the user takes out are found by their names."""

NORMALIZE = (
    "simplify",
    "close-initializers",
    "raise-opset",
    "inline-functions",
    "convert-to-float32",
)
"""One form of the same graph: constants that are none to the caller, one operator set, no calls, float32."""

SIZES = (
    "fold-known-shapes",
    "tie-transposed-weights",
    "lift-constants",
)
"""Sizes that are computed; in front of :data:`FOLD` as often as there are new ones, with shapes inferred behind each."""

FOLD = (
    *SIZES,
    "eliminate-no-ops",
    "fuse-groups",
    "split-hard-swish",
    "split-gelu",
    "split-rms-normalization",
    "split-sum",
    "einsum-to-matmul",
    "mean-to-average-pool",
    "fold-batchnorm",
    "fold-gemm-scalars",
    "fold-affine",
    "fold-input-affine",
    "affine-to-conv",
    "batchnorm-to-affine",
    "pad-all-axes",
    "resize-all-axes",
    "fold-pad",
    "matmul-bias-to-gemm",
    "gemm-to-matmul",
    "pad-counted-pools",
    "floor-average-pools",
    "divide-averages",
    "permute-from-back",
    "write-default-attributes",
)
"""The layers that the target runs; types and shapes are inferred in front of it, and BatchNormalization kept or not."""

PREPARE = (*NAME, *NORMALIZE, *FOLD)
"""From the float model to the one whose tensors are calibrated; its function stays. Passes of the user's run here."""

PLACE = (
    "place-qdq",
    "pair-captured",
    "derive-bias",
    "quantize-dynamically",
    "compute-batchnorm",
    "restore-io-types",
)
"""From the prepared model and parameters to the train form."""

FINISH = ("integer-functions",)
"""Behind the guard, which takes single quantizers off: operators between pairs become calls of functions."""

DEPLOY = (
    "unique-names",
    "inline-functions",
    "fold-weight-transpose",
    "deploy-form",
    "gather-codes",
    "permute-from-back",
    "pack-matmul-blocks",
    "raise-opset",
)
"""From the train form to what a backend reads."""
