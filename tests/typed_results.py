"""Kinds of models that come back, as type checkers see them: mypy reads this file, and nothing runs it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import onnx
import onnx_ir as ir
from torch import nn

import onnxqat
from onnxqat.graph.io import GsGraph

if TYPE_CHECKING:
    from typing_extensions import assert_type


def of_a_path(path: str, module: nn.Module) -> None:
    """The path of the file written comes back for a path."""
    assert_type(onnxqat.insert_qdq(path, "academic", output="out.onnx").model, Path)
    assert_type(onnxqat.insert_qdq(Path(path)).model, Path)
    assert_type(onnxqat.finetune(path, "data.npz", epochs=1).model, Path)
    assert_type(onnxqat.reconstruct(path, "data.npz").model, Path)
    assert_type(onnxqat.fold_batchnorm(path).model, Path)
    assert_type(onnxqat.write_back(module, path, "out.onnx"), Path)
    assert_type(onnxqat.cut(path, None, ["y"]), Path)
    assert_type(onnxqat.stitch(path, path), Path)


def of_a_proto(model: onnx.ModelProto, module: nn.Module) -> None:
    """An onnx.ModelProto comes back for one, which mypy could take for a path too."""
    assert_type(onnxqat.insert_qdq(model, "academic", limit=3).model, onnx.ModelProto)
    assert_type(onnxqat.finetune(model, "data.npz").model, onnx.ModelProto)
    assert_type(onnxqat.reconstruct(model, "data.npz").model, onnx.ModelProto)
    assert_type(onnxqat.fold_batchnorm(model).model, onnx.ModelProto)
    assert_type(onnxqat.write_back(module, model), onnx.ModelProto)
    assert_type(onnxqat.cut(model, None, ["y"]), onnx.ModelProto)
    assert_type(onnxqat.stitch("part.onnx", model), onnx.ModelProto)


def of_other_kinds(model: ir.Model, graph: GsGraph) -> None:
    """So does an onnx_ir.Model, and a graphsurgeon graph."""
    assert_type(onnxqat.insert_qdq(model).model, ir.Model)
    assert_type(onnxqat.finetune(model, "data.npz").model, ir.Model)
    assert_type(onnxqat.insert_qdq(graph).model, GsGraph)
    assert_type(onnxqat.cut(graph, None, ["y"]), GsGraph)


def misused(model: onnx.ModelProto) -> None:
    """Other parameters stay checked; an ignored error that is none is one."""
    onnxqat.insert_qdq(model, lim=3)  # type: ignore[call-overload]
    onnxqat.finetune(model)  # type: ignore[call-overload]
