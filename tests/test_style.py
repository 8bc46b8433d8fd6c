"""Style and types are a part of the suite, with the versions that requirements.txt pins."""

import subprocess
import sys

import pytest

from mha_lesson.course.paths import ROOT

# Where types say the most: the spine that people read first, and the machine that runs strangers' code.
TYPED = ["mha_lesson/steps", "mha_lesson/attention.py", "mha_lesson/blocked.py", "mha_lesson/exercises/engine"]
COMMANDS = {
    "check": ["ruff", "check", "."],
    "format": ["ruff", "format", "--check", "."],
    "types": ["mypy", *TYPED],
}


def run(arguments, folder=ROOT):
    return subprocess.run(
        [sys.executable, "-m", *arguments], cwd=folder, capture_output=True, encoding="utf-8", errors="replace"
    )


@pytest.mark.parametrize("name", COMMANDS)
def test_the_code_keeps_to_its_style(name, tmp_path):
    pytest.importorskip(COMMANDS[name][0])
    cache = ["--cache-dir", str(tmp_path)]  # the course's folder may be one that can only be read
    done = run([*COMMANDS[name], *cache])
    assert done.returncode == 0, done.stdout + done.stderr


FAULTS = {
    "check": ("import os\n", "F401"),
    "format": ("x = {  'a':1 }\n", "would be reformatted"),
    "types": ("def double(x: int) -> int:\n    return 'two'\n", "Incompatible return value type"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_and_a_file_that_does_not_is_noticed(name, tmp_path):
    pytest.importorskip(COMMANDS[name][0])
    text, said = FAULTS[name]
    (tmp_path / "wrong.py").write_text(text, encoding="utf-8")
    config = ["--config-file" if name == "types" else "--config", str(ROOT / "pyproject.toml")]
    command = [part for part in COMMANDS[name] if part not in (".", *TYPED)]
    done = run([*command, *config, "--cache-dir", str(tmp_path / "cache"), str(tmp_path / "wrong.py")], tmp_path)
    assert done.returncode == 1 and said in done.stdout + done.stderr
