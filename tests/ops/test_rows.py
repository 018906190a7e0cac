"""Every row of the operator table against the schemas of the installed onnx."""

import functools

import onnx.defs
import onnx_ir as ir
import pytest

from onnxqat.graph import query
from onnxqat.ops import operators

ROWS = sorted(operators.table().values(), key=lambda row: (row.domain, row.name))


@functools.cache
def schemas():
    return onnx.defs.get_all_schemas_with_history()


@functools.cache
def versions(name):
    return sorted(s.since_version for s in schemas() if (s.domain, s.name) == ("", name))


STANDARD = [row for row in ROWS if not row.domain and (versions(row.name) or row.name not in query.BEYOND_OPSET)]


@pytest.mark.parametrize("row", STANDARD, ids=lambda row: row.name)
def test_row_names_an_operator_of_onnx_and_versions_that_exist(row):
    assert row.since in versions(row.name)


@pytest.mark.parametrize("row", STANDARD, ids=lambda row: row.name)
def test_nobody_has_left_a_newer_schema_version_unread(row):
    newest = max(versions(row.name))
    assert row.reviewed >= newest, (
        f"{row.name} has version {newest}: read it, adapt the lowering, then raise `reviewed`"
    )


@pytest.mark.parametrize("row", STANDARD, ids=lambda row: row.name)
def test_roles_do_not_outnumber_the_inputs_of_the_schema(row):
    schema = onnx.defs.get_schema(row.name, row.reviewed)
    assert len(row.inputs) <= len(schema.inputs)
    assert (row.weight_axis is not None) == (row.family in ("convolution", "linear") and "weight" in row.inputs)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_output_range_is_ordered(row):
    assert row.output_range is None or row.output_range[0] < row.output_range[1]


def test_find_reads_both_spellings_of_the_standard_domain():
    assert operators.find("ai.onnx", "Conv") is operators.find("", "Conv")
    assert operators.find("", "NoSuchOperator") is None


def test_an_operator_of_another_domain_is_not_the_one_of_onnx() -> None:
    moved, foreign = (ir.node("Reshape", inputs=[], domain=domain) for domain in ("", "custom"))
    assert (operators.of(moved), operators.is_passthrough(moved)) == (operators.find("", "Reshape"), True)
    assert (operators.of(foreign), operators.is_passthrough(foreign)) == (None, False)
