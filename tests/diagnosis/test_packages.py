"""Packages: what the metadata ask for, and what is wrong with what is installed."""

import pytest

from onnxqat.diagnosis import packages
from onnxqat.diagnosis.packages import Package


def test_needed_packages_are_those_of_the_metadata() -> None:
    found = {package.name: package for package in packages.needed()}
    assert found["numpy"].extras == ()
    assert found["torch"].extras == ("train",)
    assert found["torch"].bounds == ">=2.6"
    assert found["onnx-ir"].version is not None
    assert "pytest" not in found


@pytest.mark.parametrize(
    ("version", "bounds", "problem"),
    [
        ("2.0", ">=2.0", None),
        ("2.13.0+cpu", ">=2.6", None),
        ("2.5.1", ">=2.6", "older"),
        ("10.0", ">=9.5", None),
        ("1.10", "<2,>=1.1", None),
        ("2.0.1", "<2,>=1.1", "newer"),
        (None, ">=2.0", "not installed"),
    ],
)
def test_versions(version: str | None, bounds: str, problem: str | None) -> None:
    found = list(packages.problems([Package("name", (), bounds, version)], {}))
    assert [problem in text and f"pip install 'name{bounds}'" in text for text in found if problem] == [True] * len(
        found
    )
    assert bool(found) == (problem is not None)


def test_a_package_of_an_extra_may_be_missing() -> None:
    assert list(packages.problems([Package("torch", ("train",), ">=2.6", None)], {})) == []


def test_two_builds_of_onnxruntime() -> None:
    (text,) = packages.problems([], {"onnxruntime": "1.23", "onnxruntime-gpu": "1.22"})
    assert "pip uninstall onnxruntime onnxruntime-gpu" in text
    assert list(packages.problems([], {"onnxruntime-gpu": "1.22"})) == []
