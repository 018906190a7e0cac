"""Small networks that passes are tried on where their files name none."""

from __future__ import annotations

HEADER = '<ir_version: 8, opset_import: ["" : 17]>\n'

_RESIDUAL = """
block (float[1,2,4,4] x) => (float[1,2,2,2] y) <
    float[2,2,1,1] w = {0.5, -0.25, 0.125, 1.0}, float[2] b = {0.5, -1.0},
    float[2] scale = {0.5, 2.0}, float[2] offset = {0.25, -0.5}, float[2] mean = {0.5, 0.0}, float[2] variance = {1.0, 4.0}>
{
    conv = Conv(x, w, b)
    norm = BatchNormalization(conv, scale, offset, mean, variance)
    relu = Relu(norm)
    sum = Add(relu, x)
    same = Identity(sum)
    y = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (same)
}
"""

_CLASSIFIER = """
classifier (float[N,3] x) => (float[N,2] y) <
    float[3,4] w = {0.5, -0.25, 0.125, 1.0, -1.0, 2.0, 0.75, -0.5, 0.25, 0.5, -0.125, 1.5}, float[4] b = {0.5, 0.0, -1.0, 0.25},
    float[2,4] v = {1.0, -0.5, 0.25, 0.125, -1.0, 0.5, 2.0, 1.0}, float[2] c = {0.0, 0.5}>
{
    product = MatMul(x, w)
    hidden = Add(product, b)
    gate = Sigmoid(hidden)
    silu = Mul(hidden, gate)
    logits = Gemm <transB = 1> (silu, v, c)
    y = Softmax <axis = -1> (logits)
}
"""

_SHAPES = """
shapes (float[1,2,3] x) => (float[1,6] y) {
    two = Constant <value_float = 2.0> ()
    doubled = Mul(x, two)
    transposed = Transpose <perm = [0, 2, 1]> (doubled)
    kept = Dropout(transposed)
    y = Flatten(kept)
}
"""

EXAMPLES = (_RESIDUAL, _CLASSIFIER, _SHAPES)
