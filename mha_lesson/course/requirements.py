"""What the course needs, and what of it is missing here. Standard library alone.

Two files say what is needed, for two purposes:

- `requirements.txt` pins exact versions: they are installed into `.venv`.
- `pyproject.toml` gives ranges: an environment of your own (conda, a hub, Binder)
  that lies within them is used as it is. An installed package carries them in its metadata.

To look at the lessons takes less than to test them; NEEDS says which of the extras of
`pyproject.toml` a command asks for.
"""

import os
import platform
import re
import sys
import tomllib
from importlib import metadata
from typing import NamedTuple

from mha_lesson.course.paths import PYPROJECT, REQUIREMENTS

LINE = re.compile(
    r"""^\s*(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)   # torch
        \s*(?P<spec>[^;\#]*?)                      # >=2.11,<3
        \s*(?:;\s*(?P<marker>[^\#]*?))?            # ; sys_platform != "win32"
        \s*(?:\#.*)?$""",
    re.VERBOSE,
)


NEEDS = {"hub": (), "lab": ("torch",), "test": ("torch", "dev")}


class Requirement(NamedTuple):
    name: str
    spec: str  # "==2.4.6" or ">=2.1,<3"
    marker: str  # "" or a condition on the machine


class Unmet(NamedTuple):
    requirement: Requirement
    found: str | None  # the version that is here, None if there is none

    def __str__(self):
        name, spec, _ = self.requirement
        return f"{name}{spec} ({'not installed' if self.found is None else 'found ' + self.found})"


def parse(line):
    """Read one requirement; None for a line with only a comment."""
    if not line.split("#", 1)[0].strip():
        return None
    match = LINE.match(line)
    if match is None:
        raise ValueError(f"expected a line like 'numpy==2.4.6', got {line!r}")
    return Requirement(match["name"], match["spec"].replace(" ", ""), (match["marker"] or "").strip())


def pins(path=REQUIREMENTS):
    """The exact versions in requirements.txt."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [found for line in lines if (found := parse(line))]


def ranges(needs="lab", path=None):
    """The ranges that a command asks for: the base, and the extras that NEEDS names."""
    path = path or PYPROJECT
    if not path.is_file():
        return installed_ranges()
    project = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
    extras = project.get("optional-dependencies", {})
    lines = [*project["dependencies"], *(line for extra in NEEDS[needs] for line in extras.get(extra, []))]
    return [parse(line) for line in lines]


def installed_ranges():
    """The base as the metadata of the installed package names it: who left torch out has lessons 00-06."""
    needs = [parse(line) for line in metadata.requires("mha-lesson") or []]
    return [need for need in needs if "extra" not in need.marker]


def together(needs):
    """{name: all that is asked of it on this machine}, such as {"numpy": ">=2.1,>=2.4"}."""
    specs = {}
    for need in filter(applies, needs):
        specs[need.name] = ",".join(filter(None, [specs.get(need.name), need.spec]))
    return specs


def marker_names():
    """What a marker may ask about the machine."""
    return {
        "sys_platform": sys.platform,
        "platform_machine": platform.machine(),
        "platform_system": platform.system(),
        "os_name": os.name,
        "python_version": ".".join(map(str, sys.version_info[:2])),
    }


def applies(requirement, names=None):
    """Does the requirement hold on this machine? A marker is written like a Python
    expression over a few names, so Python itself reads it (the text is our own file's)."""
    if not requirement.marker:
        return True
    return bool(eval(requirement.marker, {"__builtins__": {}}, names or marker_names()))


def release(version):
    """(2, 13, 0) of "2.13.0+cpu": the numbers that order versions."""
    numbers = re.match(r"v?(\d+(?:\.\d+)*)", version)
    if numbers is None:
        raise ValueError(f"expected a version like '2.13.0', got {version!r}")
    parts = [int(part) for part in numbers[1].split(".")]
    while len(parts) > 1 and parts[-1] == 0:  # 2.13.0 and 2.13 are the same release
        parts.pop()
    return tuple(parts)


COMPARE = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    ">=": lambda a, b: a >= b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    "<": lambda a, b: a < b,
}


def satisfies(version, spec):
    """Does "2.13.0+cpu" lie within ">=2.11,<3"?"""
    for clause in filter(None, spec.split(",")):
        match = re.match(r"(==|!=|>=|<=|>|<)(.+)$", clause)
        if match is None:
            raise ValueError(f"expected a clause like '>=2.11', got {clause!r}")
        if not COMPARE[match[1]](release(version), release(match[2])):
            return False
    return True


def installed(name):
    """The version installed for the running Python, or None."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def unmet(requirements, version_of=installed, names=None):
    """The requirements that the running Python does not meet."""
    found = [(need, version_of(need.name)) for need in requirements if applies(need, names)]
    return [Unmet(need, version) for need, version in found if version is None or not satisfies(version, need.spec)]
