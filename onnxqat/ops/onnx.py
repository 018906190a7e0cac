"""Operators of ONNX's own domain, by family: the file of ``bridge/lowering`` that has their functions."""

from __future__ import annotations

from onnxqat.ops.definition import OpDef

FAMILIES: dict[str, tuple[OpDef, ...]] = {
    # Activation functions
    "activation": (
        OpDef("Relu", 6, 14),
        OpDef("Clip", 6, 13, ("data", "parameter", "parameter")),
        OpDef("LeakyRelu", 6, 16),
        OpDef("PRelu", 1, 16, ("data", "weight")),
        OpDef("Elu", 6, 22),
        OpDef("Selu", 6, 22),
        OpDef("Celu", 12, 28),
        OpDef("ThresholdedRelu", 10, 22),
        OpDef("Shrink", 9, 9),
        OpDef("Sigmoid", 6, 13, output_range=(0.0, 1.0)),
        OpDef("HardSigmoid", 6, 22, output_range=(0.0, 1.0)),
        OpDef("Tanh", 6, 13, output_range=(-1.0, 1.0)),
        OpDef("HardSwish", 14, 22),
        OpDef("Swish", 24, 24),
        OpDef("SwiGLU", 28, 28),
        OpDef("Mish", 18, 22),
        OpDef("Softplus", 1, 22),
        OpDef("Softsign", 1, 22, output_range=(-1.0, 1.0)),
        OpDef("Softmax", 1, 13, output_range=(0.0, 1.0)),
        OpDef("Hardmax", 1, 13, output_range=(0.0, 1.0)),
        OpDef("LogSoftmax", 1, 13),
        OpDef("Gelu", 20, 20),
    ),
    # Elementwise arithmetic with broadcasting, and its variadic and cumulative relatives
    "arithmetic": (
        OpDef("Add", 1, 14),
        OpDef("Sub", 1, 14),
        OpDef("Mul", 1, 14),
        OpDef("Div", 1, 14),
        OpDef("Mod", 10, 28),
        OpDef("Pow", 1, 15, ("data", "parameter")),
        OpDef("Max", 1, 13),
        OpDef("Min", 1, 13),
        OpDef("Sum", 1, 13),
        OpDef("Mean", 1, 13),
        OpDef("Abs", 1, 13),
        OpDef("Ceil", 1, 13),
        OpDef("Exp", 1, 13),
        OpDef("Floor", 1, 13),
        OpDef("Log", 1, 13),
        OpDef("Neg", 1, 13),
        OpDef("Reciprocal", 1, 13),
        OpDef("Sqrt", 1, 13),
        OpDef("Sign", 9, 13, output_range=(-1.0, 1.0)),
        OpDef("Erf", 9, 13, output_range=(-1.0, 1.0)),
        OpDef("Round", 11, 22),
        OpDef("Sin", 7, 22, output_range=(-1.0, 1.0)),
        OpDef("Cos", 7, 22, output_range=(-1.0, 1.0)),
        OpDef("Tan", 7, 22),
        OpDef("Asin", 7, 22),
        OpDef("Acos", 7, 22),
        OpDef("Atan", 7, 22),
        OpDef("Sinh", 9, 22),
        OpDef("Cosh", 9, 22),
        OpDef("Asinh", 9, 22),
        OpDef("Acosh", 9, 22),
        OpDef("Atanh", 9, 22),
        OpDef("CumSum", 11, 14, ("data", "parameter")),
        OpDef("CumProd", 26, 26, ("data", "parameter")),
    ),
    # Attention and what a transformer block of ai.onnx has beside it
    "attention": (
        OpDef("Attention", 23, 25, ("data", "data", "data", "parameter", "data", "data", "parameter")),
        OpDef("RotaryEmbedding", 23, 23, ("data", "parameter")),
        OpDef("LinearAttention", 27, 27, ("data", "data", "data", "data", "parameter", "parameter")),
        OpDef("CausalConvWithState", 27, 27, ("data", "weight", "bias", "data")),
        OpDef("TensorScatter", 24, 24, ("data", "data", "parameter")),
        OpDef("FlexAttention", 1, 1, domain="ai.onnx.preview"),
    ),
    # Operators that make constants
    "constant": (
        OpDef("Constant", 1, 25, ()),
        OpDef("ConstantOfShape", 9, 25, ("parameter",)),
        OpDef("Range", 11, 27, ("parameter",)),
        OpDef("EyeLike", 9, 22, ("parameter",)),
    ),
    # Operators with subgraphs
    "control_flow": (
        OpDef("If", 1, 25, ("parameter",)),
        OpDef("Loop", 1, 25, ("parameter",)),
        OpDef("Scan", 8, 25, ("parameter",)),
    ),
    # Changes of element type
    "conversion": (
        OpDef("Cast", 1, 28, ("parameter",)),
        OpDef("CastLike", 15, 25, ("parameter", "parameter")),
        OpDef("BitCast", 26, 26, ("parameter",)),
    ),
    # Convolutions
    "convolution": (
        OpDef("Conv", 1, 22, ("data", "weight", "bias"), weight_axis=0),
        OpDef("ConvTranspose", 1, 22, ("data", "weight", "bias"), weight_axis=1),
        OpDef("DeformConv", 19, 22, ("data", "weight", "parameter"), weight_axis=0),
    ),
    # Dropout
    "dropout": (OpDef("Dropout", 1, 22, ("data", "parameter", "parameter"), passthrough=True),),
    # Sampling at computed positions
    "grid_sample": (
        OpDef("GridSample", 16, 22, ("data", "parameter")),
        OpDef("AffineGrid", 20, 20, ("parameter",)),
    ),
    # Operators that cut or put together images
    "image": (
        OpDef("Col2Im", 18, 18, ("data", "parameter", "parameter")),
        OpDef("CenterCropPad", 18, 18, ("data", "parameter"), passthrough=True),
    ),
    # Operators that select, join or scatter elements
    "indexing": (
        OpDef("Gather", 1, 13, ("weight", "parameter"), passthrough=True),
        OpDef("GatherElements", 11, 13, ("data", "parameter"), passthrough=True),
        OpDef("GatherND", 11, 13, ("data", "parameter"), passthrough=True),
        OpDef("Slice", 1, 13, ("data", "parameter"), passthrough=True),
        OpDef("Split", 2, 18, ("data", "parameter"), passthrough=True),
        OpDef("Concat", 1, 13),
        OpDef("Where", 9, 16, ("parameter", "data", "data")),
        OpDef("Scatter", 9, 11, ("data", "parameter", "data")),
        OpDef("ScatterElements", 11, 18, ("data", "parameter", "data")),
        OpDef("ScatterND", 11, 18, ("data", "parameter", "data")),
        OpDef("TopK", 1, 24, ("data", "parameter"), passthrough=True),
        OpDef("Trilu", 14, 14, ("data", "parameter"), passthrough=True),
        OpDef("Compress", 9, 28, ("data", "parameter"), passthrough=True),
        OpDef("NonZero", 9, 13, ("parameter",)),
        OpDef("OneHot", 9, 28, ("parameter", "parameter", "parameter")),
        OpDef("ReverseSequence", 10, 28, ("data", "parameter"), passthrough=True),
    ),
    # Convolutions and matrix products of integers, which are not trained
    "integer": (
        OpDef("ConvInteger", 10, 10, ("parameter",)),
        OpDef("MatMulInteger", 10, 10, ("parameter",)),
        OpDef("QLinearConv", 10, 10, ("parameter",)),
        OpDef("QLinearMatMul", 10, 21, ("parameter",)),
    ),
    # Matrix products
    "linear": (
        OpDef("Gemm", 1, 13, ("data", "weight", "bias"), weight_axis="gemm"),
        OpDef("MatMul", 1, 13, ("data", "weight"), weight_axis=-1),
        OpDef("Einsum", 12, 28),
        OpDef("Det", 11, 22, ("parameter",)),
    ),
    # Comparisons, booleans and bitwise operators
    "logic": (
        OpDef("Equal", 1, 19, ("parameter",)),
        OpDef("Greater", 1, 13, ("parameter",)),
        OpDef("Less", 1, 13, ("parameter",)),
        OpDef("GreaterOrEqual", 12, 16, ("parameter",)),
        OpDef("LessOrEqual", 12, 16, ("parameter",)),
        OpDef("And", 1, 7, ("parameter",)),
        OpDef("Or", 1, 7, ("parameter",)),
        OpDef("Xor", 1, 7, ("parameter",)),
        OpDef("Not", 1, 1, ("parameter",)),
        OpDef("IsNaN", 9, 20, ("parameter",)),
        OpDef("IsInf", 10, 20, ("parameter",)),
        OpDef("BitShift", 11, 28, ("parameter",)),
        OpDef("BitwiseAnd", 18, 18, ("parameter",)),
        OpDef("BitwiseOr", 18, 18, ("parameter",)),
        OpDef("BitwiseXor", 18, 18, ("parameter",)),
        OpDef("BitwiseNot", 18, 18, ("parameter",)),
    ),
    # Loss functions
    "loss": (
        OpDef("NegativeLogLikelihoodLoss", 12, 22, ("parameter",)),
        OpDef("SoftmaxCrossEntropyLoss", 12, 13, ("parameter",)),
    ),
    # Normalization layers
    "normalization": (
        OpDef("BatchNormalization", 1, 15, ("data", "parameter", "parameter", "parameter", "parameter")),
        OpDef("InstanceNormalization", 6, 22, ("data", "parameter", "parameter")),
        OpDef("LayerNormalization", 17, 17, ("data", "parameter", "parameter")),
        OpDef("GroupNormalization", 18, 21, ("data", "parameter", "parameter")),
        OpDef("SimplifiedLayerNormalization", 1, 1, ("data", "parameter")),
        OpDef("RMSNormalization", 23, 23, ("data", "parameter")),
        OpDef("LRN", 1, 13),
        OpDef("LpNormalization", 1, 22, output_range=(-1.0, 1.0)),
        OpDef("MeanVarianceNormalization", 9, 13),
    ),
    # Pooling
    "pooling": (
        OpDef("MaxPool", 1, 22, passthrough=True),
        OpDef("AveragePool", 1, 22),
        OpDef("GlobalAveragePool", 1, 22),
        OpDef("GlobalMaxPool", 1, 22, passthrough=True),
        OpDef("LpPool", 1, 22),
        OpDef("GlobalLpPool", 1, 22),
        OpDef("MaxUnpool", 9, 22, ("data", "parameter", "parameter"), passthrough=True),
    ),
    # Quantization operators that are not part of a recognised quantizer
    "quantization": (
        OpDef("QuantizeLinear", 10, 28, ("data", "parameter", "parameter")),
        OpDef("DequantizeLinear", 10, 28, ("data", "parameter", "parameter")),
        OpDef("DynamicQuantizeLinear", 11, 11),
    ),
    # Random numbers
    "random": (
        OpDef("RandomNormal", 1, 22, ()),
        OpDef("RandomNormalLike", 1, 22, ("parameter",)),
        OpDef("RandomUniform", 1, 22, ()),
        OpDef("RandomUniformLike", 1, 22, ("parameter",)),
        OpDef("Bernoulli", 15, 22, ("parameter",)),
        OpDef("Multinomial", 7, 22, ("parameter",)),
    ),
    # Recurrent layers
    "recurrent": (
        OpDef("RNN", 7, 22, ("parameter", "weight", "weight", "parameter")),
        OpDef("LSTM", 7, 22, ("parameter", "weight", "weight", "parameter")),
        OpDef("GRU", 7, 22, ("parameter", "weight", "weight", "parameter")),
    ),
    # Reductions over axes
    "reduction": (
        OpDef("ReduceMax", 1, 20, ("data", "parameter"), passthrough=True),
        OpDef("ReduceMin", 1, 20, ("data", "parameter"), passthrough=True),
        OpDef("ReduceMean", 1, 18, ("data", "parameter")),
        OpDef("ReduceSum", 1, 13, ("data", "parameter")),
        OpDef("ReduceProd", 1, 18, ("data", "parameter")),
        OpDef("ReduceL1", 1, 18, ("data", "parameter")),
        OpDef("ReduceL2", 1, 18, ("data", "parameter")),
        OpDef("ReduceLogSum", 1, 28, ("data", "parameter")),
        OpDef("ReduceLogSumExp", 1, 28, ("data", "parameter")),
        OpDef("ReduceSumSquare", 1, 18, ("data", "parameter")),
        OpDef("ArgMax", 1, 13),
        OpDef("ArgMin", 1, 13),
    ),
    # Spatial resampling
    "resize": (
        OpDef("Resize", 10, 19, ("data", "parameter", "parameter", "parameter")),
        OpDef("Upsample", 7, 10, ("data", "parameter")),
    ),
    # Pooling over regions, and choosing regions
    "roi": (
        OpDef("RoiAlign", 10, 22, ("data", "parameter", "parameter")),
        OpDef("MaxRoiPool", 1, 22, ("data", "parameter"), passthrough=True),
        OpDef("NonMaxSuppression", 10, 11, ("parameter",)),
    ),
    # Operators on sequences and optional values; none of them computes
    "sequence": (
        OpDef("SequenceEmpty", 11, 11, ()),
        OpDef("SequenceConstruct", 11, 11, ("parameter",)),
        OpDef("SequenceInsert", 11, 11, ("parameter",)),
        OpDef("SequenceErase", 11, 11, ("parameter",)),
        OpDef("SequenceAt", 11, 11, ("parameter",)),
        OpDef("SequenceLength", 11, 11, ("parameter",)),
        OpDef("SplitToSequence", 11, 24, ("parameter",)),
        OpDef("ConcatFromSequence", 11, 11, ("parameter",)),
        OpDef("SequenceMap", 17, 17, ("parameter",)),
        OpDef("Optional", 15, 28, ("parameter",)),
        OpDef("OptionalHasElement", 15, 28, ("parameter",)),
        OpDef("OptionalGetElement", 15, 28, ("parameter",)),
    ),
    # Operators that rearrange elements, and the ones that read a shape
    "shape": (
        OpDef("Reshape", 5, 25, ("data", "parameter"), passthrough=True),
        OpDef("Transpose", 1, 25, passthrough=True),
        OpDef("Flatten", 1, 25, passthrough=True),
        OpDef("Squeeze", 1, 25, ("data", "parameter"), passthrough=True),
        OpDef("Unsqueeze", 1, 25, ("data", "parameter"), passthrough=True),
        OpDef("Expand", 8, 13, ("data", "parameter"), passthrough=True),
        OpDef("Tile", 6, 13, ("data", "parameter"), passthrough=True),
        OpDef("DepthToSpace", 1, 28, passthrough=True),
        OpDef("SpaceToDepth", 1, 28, passthrough=True),
        OpDef("Identity", 1, 25, passthrough=True),
        OpDef("Pad", 2, 25, ("data", "parameter", "parameter", "parameter")),
        OpDef("Shape", 1, 25, ("parameter",)),
        OpDef("Size", 1, 25, ("parameter",)),
    ),
    # Signal processing
    "signal": (
        OpDef("DFT", 17, 20, ("parameter",)),
        OpDef("STFT", 17, 17, ("parameter",)),
        OpDef("BlackmanWindow", 17, 17, ("parameter",)),
        OpDef("HammingWindow", 17, 17, ("parameter",)),
        OpDef("HannWindow", 17, 17, ("parameter",)),
        OpDef("MelWeightMatrix", 17, 17, ("parameter",)),
    ),
    # Text as numbers
    "text": (OpDef("TfIdfVectorizer", 9, 9, ("parameter",)),),
    # Optimizer steps
    "training": (
        OpDef("Adagrad", 1, 1, ("parameter",), domain="ai.onnx.preview.training"),
        OpDef("Adam", 1, 1, ("parameter",), domain="ai.onnx.preview.training"),
        OpDef("Momentum", 1, 1, ("parameter",), domain="ai.onnx.preview.training"),
    ),
    # Unique
    "unique": (OpDef("Unique", 11, 28, ("data",), passthrough=True),),
}
