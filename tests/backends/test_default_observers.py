"""No table takes the whole range of an 8-bit activation without looking: one outlier would set the grid of all values."""

import pytest

from onnxqat.backends import schema
from onnxqat.placement import table_overrides
from onnxqat.placement.table_overrides import Overrides


@pytest.mark.parametrize("backend", schema.names())
@pytest.mark.parametrize(
    "overrides", [Overrides(), Overrides(activation_type="int8-symmetric")], ids=["as it is", "symmetric"]
)
def test_ranges_of_bytes_are_chosen_by_error(backend: str, overrides: Overrides) -> None:
    table = schema.load(backend)
    activations, _ = table_overrides.type_roles(table)
    accepted = table.accepts.get("activations")
    if overrides.activation_type and (not activations or (accepted and not {"int8", "int8-symmetric"} & {*accepted})):
        pytest.skip("the compiler takes no such activations")
    if overrides.activation_type and any(table.types[name].is_float for name in activations):
        pytest.skip("activations are floats")
    made = table_overrides.apply(overrides, table)
    for name in activations:
        kind = made.types[name]
        if not kind.is_float and kind.qtype().bits <= 8:
            assert kind.spec("activation").observer in ("auto", "mse")
    assert made.first_last_observer in ("auto", "mse")
