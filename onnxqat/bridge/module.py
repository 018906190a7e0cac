"""The module that the importer returns, and a view of it that returns inner tensors too."""

from __future__ import annotations

import copy
import functools
import operator
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias, TypeVar

import torch
from torch import fx, nn
from torch.utils.hooks import RemovableHandle

from onnxqat.discover import unknown

TensorHook: TypeAlias = "Callable[[torch.Tensor], torch.Tensor | None]"
_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_Found = TypeVar("_Found")
_Spec = list[tuple[str, str, Any, Any, Any, dict[str, Any]]]


class _Ref:
    """Stands for an fx node in a pickled graph."""

    def __init__(self, name: str) -> None:
        self.name = name


class OnnxModule(fx.GraphModule):
    """An ONNX graph as torch code; ``print(module.code)`` shows it.

    Pickled and copied as its graph, not by tracing its code again, so that helpers and metadata survive.

    Attributes:
        input_names: ONNX names of the arguments of ``forward``.
        output_names: ONNX names of what it returns.
        input_types: ONNX element types of the arguments; :mod:`onnxqat.bridge.importing.values` has the torch type of each.
        output_types: the same of what it returns.
        parameter_names: state dict key -> ONNX name, of parameters and buffers that hold constants of the file.
        tensor_nodes: ONNX tensor name -> name of the fx node that computes it.
        quantizers: ONNX tensor name -> path of the quantizer submodule.
    """

    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    input_types: tuple[str, ...]
    output_types: tuple[str, ...]
    parameter_names: dict[str, str]
    tensor_nodes: dict[str, str]
    quantizers: dict[str, str]

    def bodies(self) -> dict[str, OnnxModule]:
        """The modules of the bodies of If, Loop and Scan in its graph, by path."""
        targets = (str(node.target) for node in self.graph.nodes if node.op == "get_attr")
        found = {target: operator.attrgetter(target)(self) for target in targets}
        return {target: held for target, held in found.items() if isinstance(held, OnnxModule)}

    @property
    def code(self) -> str:
        """The code of ``forward`` for reading: without the lines that free memory, functions by their usual names."""
        text = re.sub(r";  [\w =]+ = None$", "", str(super().code).strip(), flags=re.MULTILINE)
        for function in {n.target for n in self.graph.nodes if n.op == "call_function"}:
            home, name = str(getattr(function, "__module__", "")), getattr(function, "__name__", "")
            if home.startswith("onnxqat."):
                written = f"{home.replace('.', '_')}_{name}("
                text = text.replace(written, f"{home.rpartition('.')[2]}.{name}(")
        return text.replace("torch._C._nn.", "torch.nn.functional.").replace("torch_Tensor_", "torch.Tensor.") + "\n"

    def capture(self, names: Iterable[str]) -> Capture:
        """A module that also returns the inner tensors called `names` in the ONNX file; see :func:`capture`."""
        return capture(self, names)

    def register_tensor_hook(self, name: str, hook: TensorHook) -> RemovableHandle:
        """Call ``hook(tensor)`` on the tensor called `name` in the ONNX file in every forward pass.

        What the hook returns takes the tensor's place for all that read it, None leaves it. The handle's ``remove()``
        takes the hook out.

        Raises:
            UsageError: ``name-unknown``; shape arithmetic and the inside of a fused call have no tensor.
        """
        if name not in self.tensor_nodes:
            raise unknown("tensor", name, sorted(self.tensor_nodes))
        node = next(n for n in self.graph.nodes if n.name == self.tensor_nodes[name])
        path = f"hooks_of_{node.name}"
        home = self._modules.get(path)
        if not isinstance(home, _TensorHooks):
            home = _TensorHooks()
            self.add_module(path, home)
            call = _call_behind(self.graph, node, path)
            node.replace_all_uses_with(call, delete_user_cb=lambda user: user is not call)
            self.recompile()
        handle = RemovableHandle(home.hooks)
        home.hooks[handle.id] = hook
        return handle

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> OnnxModule:
        """As of every module; element types in the code (of casts and constants) follow the parameters."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        follows = {dtype: fn(torch.empty(0, dtype=dtype)).dtype for dtype in _FLOATS}
        changed = False
        for node in self.graph.nodes:
            arguments = fx.node.map_aggregate((node.args, node.kwargs), lambda a: _new_dtype(a, follows))
            if arguments != (node.args, node.kwargs):
                node.args, node.kwargs = arguments
                changed = True
        if changed:
            self.recompile()
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return (_restore, (_flatten(self.graph), _plain(self)))

    def __deepcopy__(self, memo: dict[int, Any]) -> OnnxModule:
        copied = _restore(_flatten(self.graph), copy.deepcopy(_plain(self), memo))
        memo[id(self)] = copied
        return copied

    def __copy__(self) -> OnnxModule:
        return _restore(_flatten(self.graph), _plain(self))


def make(root: nn.Module, graph: fx.Graph, attributes: dict[str, Any]) -> OnnxModule:
    """A module with the tensors and submodules of `root` that runs `graph`."""
    state = dict(root.__dict__)
    state.update(attributes)
    return _restore(_flatten(graph), state)


def view(
    module: nn.Module,
    find: Callable[[OnnxModule, fx.Graph], Sequence[_Found]],
    change: Callable[[fx.Graph, _Found], None],
) -> nn.Module:
    """A module with the parameters, buffers and submodules of `module`, which is not changed, and a changed graph.

    Args:
        module: any that is no :class:`OnnxModule` is returned as it is, and so is one in which nothing is found.
        find: what there is to change in a graph.
        change: changes one of what was found in the copy of the graph.
    """
    if not isinstance(module, OnnxModule) or not find(module, module.graph):
        return module
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    for found in find(module, graph):
        change(graph, found)
    made = make(module, graph, {})
    made.train(module.training)
    return made


def _flatten(graph: fx.Graph) -> _Spec:
    def encode(node: fx.Node) -> Any:
        return _Ref(node.name)

    found: _Spec = []
    for node in graph.nodes:
        meta = {key: node.meta[key] for key in ("onnx_name", "onnx_node", "onnx_dtype") if key in node.meta}
        arguments = (fx.node.map_arg(node.args, encode), fx.node.map_arg(node.kwargs, encode))
        found.append((node.op, node.name, node.target, *arguments, meta))
    return found


def _decode(value: Any, nodes: dict[str, fx.Node]) -> Any:
    if isinstance(value, _Ref):
        return nodes[value.name]
    if isinstance(value, (list, tuple)):
        return type(value)(_decode(v, nodes) for v in value)
    if isinstance(value, dict):
        return {key: _decode(v, nodes) for key, v in value.items()}
    if isinstance(value, slice):
        return slice(_decode(value.start, nodes), _decode(value.stop, nodes), _decode(value.step, nodes))
    return value


def _plain(module: OnnxModule) -> dict[str, Any]:
    """The attributes of `module` without its graph and what fx makes of that."""
    return {key: value for key, value in vars(module).items() if key not in ("_graph", "_code", "_lineno_map")}


def _restore(spec: _Spec, state: dict[str, Any]) -> OnnxModule:
    graph, nodes = fx.Graph(), dict[str, fx.Node]()
    for op, name, target, args, kwargs, meta in spec:
        arguments = tuple(_decode(list(args), nodes))
        nodes[name] = graph.create_node(op, target, arguments, _decode(dict(kwargs), nodes), name=name)
        nodes[name].meta.update(meta)
    # Not by __init__, which compiles the code of a graph: that of one graph is enough.
    module = OnnxModule.__new__(OnnxModule)
    type(module).__name__ = OnnxModule.__name__  # each has a class of its own
    module.__dict__.update({key: copy.copy(value) for key, value in _blank().items()} | state)
    module.graph = graph
    return module


@functools.cache
def _blank() -> dict[str, Any]:
    """Attributes of a module without a graph, as fx makes them."""
    return _plain(OnnxModule(nn.Module(), fx.Graph(), class_name=OnnxModule.__name__))


class _TensorHooks(nn.Module):
    """The hooks of one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.hooks: OrderedDict[int, TensorHook] = OrderedDict()

    def forward(self, tensor: torch.Tensor) -> torch.Tensor:
        """`tensor`, or what a hook makes of it."""
        for hook in self.hooks.values():
            result = hook(tensor)
            tensor = tensor if result is None else result
        return tensor


def _call_behind(graph: fx.Graph, node: fx.Node, path: str) -> fx.Node:
    """A call of submodule `path` on `node`; behind all arguments of ``forward`` where it is one of them."""
    place = node
    while node.op == "placeholder" and place.next.op == "placeholder":
        place = place.next
    with graph.inserting_after(place):
        return graph.call_module(path, (node,))


def _new_dtype(argument: Any, follows: dict[torch.dtype, torch.dtype]) -> Any:
    return follows.get(argument, argument) if isinstance(argument, torch.dtype) else argument


class Capture(nn.Module):
    """Runs a module and returns (its result, the named tensors by ONNX name)."""

    def __init__(self, module: OnnxModule, names: Sequence[str]) -> None:
        super().__init__()
        self.module = module
        self.names = tuple(names)
        self._wanted: dict[str, list[str]] = {}
        for name in self.names:
            if name not in module.tensor_nodes:
                raise unknown("tensor", name, sorted(module.tensor_nodes))
            self._wanted.setdefault(module.tensor_nodes[name], []).append(name)

    def forward(self, *inputs: torch.Tensor) -> tuple[Any, dict[str, torch.Tensor]]:
        """Run the graph node by node."""
        recorder = _Recorder(self.module, self._wanted)
        result = recorder.run(*inputs)
        return result, {name: recorder.found[name] for name in self.names}


class _Recorder(fx.Interpreter):
    def __init__(self, module: OnnxModule, wanted: dict[str, list[str]]) -> None:
        super().__init__(module)
        self.wanted = wanted
        self.found: dict[str, torch.Tensor] = {}

    def run_node(self, n: fx.Node) -> Any:
        """Run one node and keep its result where it is asked for."""
        result = super().run_node(n)
        for name in self.wanted.get(n.name, ()):
            self.found[name] = result
        return result


def capture(module: OnnxModule, names: Iterable[str]) -> Capture:
    """A module that also returns the inner tensors called `names` in the ONNX file.

    Shape arithmetic and what a quantizer hides (codes) have no tensor: see ``module.tensor_nodes`` for what has.

    Raises:
        UsageError: ``name-unknown``.
    """
    return Capture(module, list(names))
