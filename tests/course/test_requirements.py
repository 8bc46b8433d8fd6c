"""What is needed, and what is here."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.markers import Marker
from packaging.specifiers import SpecifierSet

from mha_lesson.course import paths, requirements


def test_every_pin_is_exact_and_says_who_needs_it():
    lines = paths.REQUIREMENTS.read_text(encoding="utf-8").splitlines()
    pinned = [line for line in lines if requirements.parse(line)]
    assert len(pinned) == len(requirements.pins()) > 10
    for line in pinned:
        assert requirements.parse(line).spec.startswith("=="), line
        assert line.partition("#")[2].strip(), f"no comment: {line}"


def test_pins_lie_in_the_ranges_and_both_files_name_the_same_packages():
    ranges = {need.name: need for need in requirements.ranges()}
    pins = {need.name: need for need in requirements.pins()}
    assert set(pins) == set(ranges)
    for name, pin in pins.items():
        assert requirements.satisfies(pin.spec[2:], ranges[name].spec), name
        assert pin.marker == ranges[name].marker, name


def test_a_line_is_read():
    line = "torch >=2.11, <3 ; sys_platform != 'darwin'  # lessons 07-13"
    assert requirements.parse(line) == ("torch", ">=2.11,<3", "sys_platform != 'darwin'")
    assert requirements.parse("  # only a comment") is None
    with pytest.raises(ValueError, match="expected a line like"):
        requirements.parse("-r other.txt")


versions = st.lists(st.integers(0, 30), min_size=1, max_size=3).map(lambda parts: ".".join(map(str, parts)))


@given(versions, versions, st.sampled_from(["==", "!=", ">=", "<=", ">", "<"]))
def test_versions_compare_as_packaging_compares_them(version, other, operator):
    assert requirements.satisfies(version, operator + other) == (version in SpecifierSet(operator + other))


@pytest.mark.parametrize(
    ("version", "spec", "answer"),
    [
        ("2.13.0+cpu", "==2.13.0", True),
        ("2.13.0+cu128", ">=2.11,<3", True),
        ("3.0", ">=2.11,<3", False),
        ("2.9.1", ">=2.11", False),
        ("2026.1", "", True),
    ],
)
def test_a_version_satisfies(version, spec, answer):
    assert requirements.satisfies(version, spec) is answer


def test_a_clause_that_is_not_understood_is_an_error():
    with pytest.raises(ValueError, match=r"expected a clause like '>=2.11', got '~=2.1'"):
        requirements.satisfies("2.1", "~=2.1")


@pytest.mark.parametrize(
    ("system", "machine", "has_torch"),
    [
        ("linux", "x86_64", True),
        ("linux", "aarch64", True),
        ("darwin", "arm64", True),
        ("darwin", "x86_64", False),
        ("win32", "AMD64", True),
        ("win32", "ARM64", False),
    ],
)
def test_torch_is_asked_for_only_where_it_has_a_build(system, machine, has_torch):
    torch = next(need for need in requirements.pins() if need.name == "torch")
    names = {"sys_platform": system, "platform_machine": machine}
    assert requirements.applies(torch, names) is has_torch
    assert Marker(torch.marker).evaluate(names) is has_torch
    missing = requirements.unmet([torch], version_of=lambda name: None, names=names)
    assert bool(missing) is has_torch


def test_unmet_names_what_was_found():
    here = {"numpy": "1.26.4", "torch": None, "pytest": "9.2.0"}
    needs = [requirements.parse(line) for line in ("numpy>=2.1", "torch>=2.11", "pytest>=8.2")]
    found = [str(lack) for lack in requirements.unmet(needs, version_of=here.get)]
    assert found == ["numpy>=2.1 (found 1.26.4)", "torch>=2.11 (not installed)"]
