"""Operators between pairs as calls of integer functions."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnxqat.graph import build, query, walk
from onnxqat.integer_functions import calls, library
from onnxqat.integer_functions.definition import DOMAIN, VERSION, Constants, IntegerFunction
from onnxqat.passes import _whole_sums
from onnxqat.passes._base import Context, Pass, Rewrite
from onnxqat.passes._edits import Log, scope_map
from onnxqat.passes._function_candidates import Candidate, found_at, limited_at, masked_at
from onnxqat.passes._masked_softmaxes import Masks
from onnxqat.passes._setting import Setting

OLDEST = 13
"""First opset in which Softmax is computed along one axis, and ReduceSum has its axes as an input."""
FUNCTIONS_IR = 8
"""First IR version whose models hold functions."""


class IntegerFunctions(Pass):
    """Float operators between quantizers become calls of integer functions (:mod:`onnxqat.integer_functions`).

    1. An operator of those that are chosen, whose input is dequantized and whose only reader quantizes its result, is
       replaced together with that QuantizeLinear: a call reads the codes in front and gives those behind. Its name and
       those of the codes stay. The model gets the function, one for each pair of types, and initializers
       ``<result>_<constant>`` for what depends on the two scales.
    2. A weighted sum, which is products with constants and the Adds that join them, is one call with one rounding: the
       pairs between its operators go. So is a BatchNormalization that became Mul and Add. A sum or a product of two alone
       stays, since targets have kernels for it.
    3. A Softmax of scores to which a mask is added is a call that reads the mask's own pair, 1 for kept places and 0 for
       others, where the mask is made of whole numbers or conditions: what makes large negative numbers of them goes.
    4. A Max or Min with constants is a call that holds them as codes of the result.
    5. A ReduceSum of whole numbers that a Cast made float, as the count of a mask's tokens, adds them in front of the Cast.
    6. The DequantizeLinear in front goes where nothing else reads it.
    7. Left alone, with the reason: one scale for each channel, types without a function, a result that something reads
       in float, rows that are too long or steps that are too small for the function.

    Tolerance: the bound that the function states; codes differ from those of the float operator by it. ::

        d = DequantizeLinear(q, s, z)   f = Softmax(d)   c = QuantizeLinear(f, t, u)   y = DequantizeLinear(c, t, u)
        c = onnxqat.integer.Softmax_uint8_uint8(q, ...)   y = DequantizeLinear(c, t, u)

    Args:
        operators: those that are replaced, as ``Softmax``.
        lut: bits of the number of segments of tables of long codes; None: as the functions have them.
    """

    def __init__(self, operators: Sequence[str] | None = None, lut: int | None = None) -> None:
        self.lut = lut
        self.operators = tuple(library.kinds()) if operators is None else tuple(operators)

    @classmethod
    def for_backend(cls, setting: Setting) -> Pass | None:
        """Run where the table, or the user, names operators."""
        return cls(setting.table.integer, setting.overrides.lut) if setting.table.integer else None

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        """Put calls in; see the class."""
        log, scopes = Log(), scope_map(model)
        chosen = [kind for kind in library.kinds().values() if kind.operator in self.operators]
        found = [one for kind in chosen if len(kind.parts) > 1 for one in _sums(model, kind)]
        taken = {id(node) for one in found for node in (one.node, *one.inner)}
        variants = {kind.parts[0]: kind for kind in chosen if len(kind.parts) == 1}
        masks = Masks(context.names)
        if "ReduceSum" in self.operators:
            for node in [node for node in walk.nodes(model) if node.op_type == "ReduceSum" and not node.domain]:
                if query.opset(model, walk.scope_of(node)) >= OLDEST and _whole_sums.replaced(node, context.names):
                    log.did("a sum of whole numbers is computed before they are cast", node)
        kinds = {(kind.domain, kind.operator): kind for kind in chosen if not kind.parts}
        order = list(walk.nodes(model))
        for node in order:
            single = kinds.get((node.domain, node.op_type))
            if single is None or id(node) in taken or _is_whole(node.outputs[0]):
                continue
            if single.mode not in (None, query.mode(node)):
                continue
            here: Candidate | str = f"its form is that of opset {single.since}"
            if query.opset(model, walk.scope_of(node)) >= single.since:
                other = _variant_at(node, variants.get(node.op_type), masks)
                here = found_at(node, single, self.lut) if other is None else other
            if isinstance(here, str):
                log.left(f"{single.operator} stays in float: {here}", node)
            else:
                found.append(here)
        if not found and not log.result().remarks:
            log.left("the model has no operator that is to become an integer function")
        # In graph order: codes that a call gives are quantized again for the next, which its scale in training hangs on.
        places = {id(node): index for index, node in enumerate(order)}
        for here in sorted(found, key=lambda one: places[id(one.node)]):
            operator = here.function.operator
            of_operands = [calls.grid_of(qparams) for qparams in here.x]
            try:
                constants = here.function.constants_of(of_operands, calls.grid_of(here.y), here.call)
            except ValueError as reason:
                log.left(f"{operator} stays in float: {reason}", here.node)
                continue
            _replace(model, here, constants, scopes[id(here.node.graph)], context.names)
            log.did(f"{operator} is a call of an integer function", here.label)
        masks.remove_unread()
        return log.result()


def _is_whole(value: ir.Value) -> bool:
    return value.dtype is not None and not query.is_float(value)


def _variant_at(node: ir.Node, kind: type[IntegerFunction] | None, masks: Masks) -> Candidate | str | None:
    """The candidate for the function that an operator has in some of its places, or a reason; None in other places."""
    if kind is None or node.domain:
        return None
    return masked_at(node, kind, masks) if node.op_type == "Softmax" else limited_at(node, kind)


def _sums(model: ir.Model, kind: type[IntegerFunction]) -> list[Candidate]:
    """Weighted sums of more than one operator; the last operator takes the others."""
    found: list[Candidate] = []
    taken: set[int] = set()
    for node in reversed(list(walk.nodes(model))):
        if node.domain or node.op_type not in kind.parts or id(node) in taken:
            continue
        here = found_at(node, kind, None)
        if isinstance(here, str):
            continue  # most sums of a network are none of these, and what they are is seen in the file
        found.append(here)
        taken |= {id(inner) for inner in here.inner}
    return found[::-1]


def _replace(model: ir.Model, here: Candidate, constants: Constants, scope: walk.Scope, names: build.Names) -> None:
    """Call the function in place of the candidate's nodes, and add its body to the model once."""
    function, opset = here.function, query.opset(model)
    output = here.quantize.outputs[0]
    dtypes = function.dtypes()
    held = [
        build.constant(scope, names.fresh(here.constant_name(name)), value, ir.DataType(dtypes[name]), before=here.node)
        for name, value in constants.items()
    ]
    name, output.name = str(output.name), None
    made = build.node(
        function.name,
        [*here.codes(names), *held],
        [name],
        here.attributes,
        domain=DOMAIN,
        dtype=output.dtype,
        shape=output.shape,
        name=here.node.name,
        stamp=dict(here.node.metadata_props),
    )
    scope.insert_before(here.quantize, made)
    output.replace_all_uses_with(made.outputs[0])
    here.remove()
    model.opset_imports.setdefault(DOMAIN, VERSION)
    model.ir_version = max(model.ir_version or 0, FUNCTIONS_IR)
    if (DOMAIN, function.name, "") not in model.functions:
        added = ir.serde.deserialize_function(function.to_onnx(opset))
        model.functions[added.identifier()] = added
