"""What is needed, and what is here."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.markers import Marker
from packaging.requirements import Requirement
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
    ranges = requirements.ranges("test")
    pins = {need.name: need for need in requirements.pins()}
    assert set(pins) == {need.name for need in ranges}
    for need in ranges:
        assert requirements.satisfies(pins[need.name].spec[2:], need.spec), need
    markers = {need.name: need.marker for need in reversed(ranges)}  # the first of a name
    assert {name: pin.marker for name, pin in pins.items()} == markers


def test_the_lessons_ask_for_less_than_their_tests():
    lab, test = ({need.name for need in requirements.ranges(word)} for word in ("lab", "test"))
    base = {need.name for need in base_of_a_wheel()}
    assert base < lab < test
    assert {need.name for need in requirements.ranges("hub")} == base
    assert lab - base == {"torch", "safetensors"} and {"pytest", "ruff", "mypy"} <= test - lab
    assert {"jupyterlab", "numpy", "matplotlib"} <= base


def base_of_a_wheel():
    """What the base is, read by another reader of TOML and of requirements."""
    import tomllib

    lines = tomllib.loads(paths.PYPROJECT.read_text(encoding="utf-8"))["project"]["dependencies"]
    return [Requirement(line) for line in lines]


METADATA = [
    "numpy>=2.1",
    'numpy>=2.4; sys_platform == "darwin" and platform_machine == "arm64"',
    'torch>=2.11; (sys_platform != "darwin") and extra == "torch"',
    'pytest>=8.2; extra == "dev"',
]


def test_an_installed_package_reads_its_metadata(folder, monkeypatch):
    monkeypatch.setattr(requirements, "PYPROJECT", folder / "pyproject.toml")
    monkeypatch.setattr(requirements.metadata, "requires", lambda name: METADATA)
    assert [need.spec for need in requirements.ranges("test")] == [">=2.1", ">=2.4"], "the extras are left out"
    monkeypatch.setattr(requirements.metadata, "requires", lambda name: None)
    assert requirements.ranges() == []


def test_what_is_asked_twice_is_asked_together(monkeypatch):
    needs = [requirements.parse(line) for line in METADATA[:2]]
    for machine, spec in (("arm64", ">=2.1,>=2.4"), ("x86_64", ">=2.1")):
        names = {"sys_platform": "darwin", "platform_machine": machine}
        monkeypatch.setattr(requirements, "marker_names", lambda names=names: names)
        assert requirements.together(needs) == {"numpy": spec}
        assert Marker(needs[1].marker).evaluate(names) is (machine == "arm64")


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
