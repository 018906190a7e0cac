"""MQBench's ``prepare_custom_config_dict``: what its entries are here, and why some have nothing to do in ONNX."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import onnx_ir as ir

from onnxqat import discover
from onnxqat.backends.schema import WIDTHS, Backend, OpRow, Slot, TypeRow
from onnxqat.compat import mqbench_names, node_names
from onnxqat.errors import UsageError
from onnxqat.graph import walk
from onnxqat.placement import table_overrides
from onnxqat.placement.table_overrides import Overrides
from onnxqat.types import Remark

SOURCE = "prepare_by_platform"

NOT_NEEDED = {
    "preserve_attr": "the graph is the model, and attributes of your own module stay on it",
    "concrete_args": "the ONNX file is one path through the model already; choose it by the example inputs of the export",
    "leaf_module": "nothing is traced; an operator of your own is a row in onnxqat/ops and a function in bridge/lowering",
    "custom_tracer": "nothing is traced; the ONNX exporter has already resolved control flow and constructors",
}
FUSION = "fusion is the backend table's `fused` chains and the passes, seen with `onnxqat backends show NAME`"
QCONFIG = ("w_observer", "a_observer", "w_fakequantize", "a_fakequantize", "w_fakeq_params", "a_fakeq_params")
SCHEMES = ("w_qscheme", "a_qscheme")
QSCHEME = ("bit", "symmetry", "per_channel", "pot_scale", "symmetric_range", "p")
QUANTIZER = (
    "additional_function_type",
    "additional_module_type",
    "additional_node_name",
    "exclude_function_type",
    "exclude_module_name",
    "exclude_node_name",
)
FUSE = ("additional_fuser_method_mapping", "additional_fusion_pattern", "additional_qat_module_mapping")
KEYS = (
    "extra_qconfig_dict",
    "extra_quantizer_dict",
    "extra_fuse_dict",
    "preserve_attr",
    "concrete_args",
    "leaf_module",
)


@dataclasses.dataclass
class Settings:
    """Settings that a custom config asks for.

    Attributes:
        table: the backend table with types, observers and rows as asked for.
        overrides: nodes to leave out.
        weight_method, activation_method: how scales learn, files of ``onnxqat/training/methods``.
        remarks: entries that have nothing to do, and why.
    """

    table: Backend
    overrides: Overrides
    weight_method: str = "lsq"
    activation_method: str = "lsq"
    remarks: list[Remark] = dataclasses.field(default_factory=list)

    def remark(self, message: str) -> None:
        """Keep something worth telling."""
        self.remarks.append(Remark(message, source=SOURCE))


def apply(config: Mapping[str, Any] | None, table: Backend, overrides: Overrides, model: ir.Model) -> Settings:
    """The settings that `config` asks for.

    Args:
        config: MQBench's ``prepare_custom_config_dict``.
        table: backend table.
        overrides: what holds already.
        model: the float model, on whose nodes names are looked up; it is only read.

    Raises:
        UsageError: ``name-unknown`` for a key, observer, fake quantizer, module or function, with close matches;
            ``pattern-no-match`` for a module or node name that no node has; ``option-invalid``.
    """
    config = config or {}
    _check(config, KEYS, "prepare_custom_config_dict")
    settings = Settings(table_overrides.apply(overrides, table), overrides)
    _quantizers(settings, config.get("extra_quantizer_dict") or {}, model)
    _qconfig(settings, config.get("extra_qconfig_dict") or {})
    fuse = config.get("extra_fuse_dict") or {}
    _check(fuse, FUSE, "extra_fuse_dict")
    for key in fuse:
        settings.remark(f"{key} is not needed: {FUSION}")
    for key in NOT_NEEDED:
        if config.get(key):
            settings.remark(f"{key} is not needed: {NOT_NEEDED[key]}")
    return settings


def _check(given: Any, known: Iterable[str], where: str) -> None:
    if not isinstance(given, Mapping):
        raise UsageError("option-invalid", f"{where} is a {type(given).__name__}", hint="a dictionary, as in MQBench")
    for key in given:
        if key not in known:
            raise discover.unknown(f"key of {where}", str(key), list(known))


# ---------------------------------------------------------------- extra_qconfig_dict
def _qconfig(settings: Settings, given: Mapping[str, Any]) -> None:
    """Apply `extra_qconfig_dict` to the table's types: observers, schemes and the training methods of both roles."""
    _check(given, (*QCONFIG, *SCHEMES), "extra_qconfig_dict")
    activations, weights = table_overrides.type_roles(settings.table)
    types = dict(settings.table.types)
    for letter, names in (("w", weights), ("a", activations)):
        changes: dict[str, Any] = {}
        observer = given.get(f"{letter}_observer")
        if observer is not None:
            changes |= _observer(settings, str(observer))
        scheme = given.get(f"{letter}_qscheme") or {}
        _check(scheme, QSCHEME, f"{letter}_qscheme")
        for name in names:
            types[name] = _with_scheme(types[name].model_copy(update=changes), scheme, letter)
        if given.get(f"{letter}_fakeq_params"):
            settings.remark(f"{letter}_fakeq_params are MQBench's; here start values come from calibration")
    update: dict[str, object] = {"types": types}
    if "a_observer" in given or "w_observer" in given:
        update["first_last_observer"] = types[sorted(activations)[0]].observer if activations else "minmax"
    settings.table = settings.table.model_copy(update=update)
    settings.weight_method = _method(given.get("w_fakequantize"))
    settings.activation_method = _method(given.get("a_fakequantize"))


def _observer(settings: Settings, name: str) -> dict[str, Any]:
    found, same = mqbench_names.observer(name, discover.names("onnxqat.calibration.observers"))
    if not same:
        settings.remark(f"{name} is {found} here")
    return {"observer": found} | ({"scale": "pow2"} if name in mqbench_names.POWERS_OF_TWO else {})


def _with_scheme(row: TypeRow, scheme: Mapping[str, Any], letter: str) -> TypeRow:
    """Return `row` with the bits, symmetry, granularity and scales of an MQBench scheme."""
    if not scheme:
        return row
    if row.is_float:
        raise UsageError("option-invalid", f"{letter}_qscheme: {row.dtype} has no integer grid")
    update: dict[str, Any] = {}
    bits = scheme.get("bit", row.qtype().bits)
    if bits not in WIDTHS:
        raise UsageError("option-invalid", f"{letter}_qscheme: {bits} bits are not possible", hint="2 to 8, or 16")
    bits = int(bits)
    if "symmetry" in scheme:
        # MQBench stores symmetric types signed and others unsigned.
        sign = "" if scheme["symmetry"] else "u"
        update |= {"symmetric": bool(scheme["symmetry"]), "dtype": f"{sign}int{16 if bits > 8 else 8}", "bits": None}
        update |= {"qrange": None, "unsigned": False}
    if "per_channel" in scheme:
        if letter == "a" and scheme["per_channel"]:
            hint = "no runtime computes a layer whose input has a scale a channel"
            raise UsageError("option-invalid", "a_qscheme: activations have one scale a tensor", hint=hint)
        update["granularity"] = "channel" if scheme["per_channel"] else "tensor"
    if "pot_scale" in scheme:
        update["scale"] = "pow2" if scheme["pot_scale"] else "any"
    changed = row.model_copy(update=update)
    changed = changed.with_bits(bits) if bits != changed.qtype().bits or "bit" in scheme else changed
    if scheme.get("symmetric_range"):
        largest = changed.qtype().quant_max
        changed = changed.model_copy(update={"qrange": (-largest, largest)}) if changed.symmetric else changed
    return changed


def _method(name: Any) -> str:
    if name is None:
        return "lsq"
    known = discover.names("onnxqat.training.methods")
    if name == mqbench_names.LOGARITHMIC:
        raise UsageError(
            "option-invalid",
            f"{name} has a logarithmic grid, which no QuantizeLinear can express",
            hint=f"one of: {', '.join(mqbench_names.METHODS)}",
        )
    found = mqbench_names.METHODS.get(str(name), str(name).replace("-", "_"))
    if found not in known:
        raise discover.unknown("fake quantizer", str(name), [*mqbench_names.METHODS, *known])
    return found


# ---------------------------------------------------------------- extra_quantizer_dict
def _quantizers(settings: Settings, given: Mapping[str, Any], model: ir.Model) -> None:
    """Apply `extra_quantizer_dict`: excluded modules, nodes and functions, and operators that it adds to the table."""
    _check(given, QUANTIZER, "extra_quantizer_dict")
    excluded: dict[str, None] = {}
    for path in _listed_values(given, "exclude_module_name"):
        excluded |= dict.fromkeys(_check_found(node_names.of_module(model, str(path)), "exclude_module_name", path))
    for name in _listed_values(given, "exclude_node_name"):
        excluded |= dict.fromkeys(_check_found(node_names.of_fx_node(model, str(name)), "exclude_node_name", name))
    for kind in _listed_values(given, "exclude_function_type"):
        operators = mqbench_names.operators(kind)
        matching = [node_names.title(n) for n in walk.nodes(model) if n.op_type in operators]
        excluded |= dict.fromkeys(_check_found(matching, "exclude_function_type", kind))
    added: set[str] = set()
    for name in _listed_values(given, "additional_node_name"):
        added |= set(_check_found(node_names.of_fx_node(model, str(name)), "additional_node_name", name))
    kinds = [*_listed_values(given, "additional_module_type"), *_listed_values(given, "additional_function_type")]
    wanted = {op for kind in kinds for op in mqbench_names.operators(kind)}
    of_added = {n.op_type for n in walk.nodes(model) if node_names.title(n) in added}
    for op in sorted((wanted | of_added) - set(settings.table.ops)):
        _add_row(settings, op)
        if op not in wanted:
            others = [node_names.title(n) for n in walk.nodes(model) if n.op_type == op]
            excluded |= dict.fromkeys(others)
    names = tuple(name for name in excluded if name not in added)
    settings.overrides = dataclasses.replace(settings.overrides, exclude=(*settings.overrides.exclude, *names))


def _add_row(settings: Settings, op: str) -> None:
    """Quantize all inputs of `op`, and its output where the table places pairs there."""
    from onnxqat.ops import operators as _base

    if _base.find("", op) is None:
        raise UsageError("name-unknown", f"{op} is no operator that onnxqat knows")
    table = settings.table
    activations, _ = table_overrides.type_roles(table)
    first = table.ops["Conv"].inputs[0].use if "Conv" in table.ops else None
    use = first if first in activations else sorted(activations)[0]
    slot = Slot(use=use, variadic=True)
    outputs = (Slot(use=use),) if table.placement == "both" else ()
    row = OpRow(inputs=(slot,), outputs=outputs)
    passthrough = tuple(name for name in table.passthrough if name.partition("/")[0] != op)
    settings.table = table.model_copy(update={"ops": {**table.ops, op: row}, "passthrough": passthrough})
    settings.remark(f"{table.backend} has no row for {op}: its inputs are quantized because you ask for it")


def _listed_values(given: Mapping[str, Any], key: str) -> list[Any]:
    value = given.get(key) or ()
    return list(value) if isinstance(value, (list, tuple, set, frozenset)) else [value]


def _check_found(names: list[str], key: str, what: Any) -> list[str]:
    if not names:
        raise UsageError(
            "pattern-no-match",
            f"{key}: no node of the model belongs to {what!r}",
            hint="names are those of the torch module, or of nodes and tensors of the ONNX file",
        )
    return names
