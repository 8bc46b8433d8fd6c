"""Lesson 08 without torch says so, and the rest works."""

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")


pytestmark = pytest.mark.torch


def run(code):
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return out.stdout.strip().split("\n")


def test_without_torch_lesson_08_says_so_and_the_rest_works():
    lines = run(
        "import sys; sys.modules['torch'] = None\n"
        "from mha_lesson.exercises import *\n"
        "f = lambda lengths, S: 1\n"
        "r = check('08.blocked', f); print(r.status, r.mistake); print(r.message)\n"
        "print(solution('08.works').text == r.message, scoreboard(f).markdown == r.message)\n"
        "print('hint 1 of' in hint('08.blocked').text, adopt('08.load', f) is f)\n"
        "print(check('00.double', lambda x: x + x).status, len(status().text) > 100)\n"
    )
    assert lines[0] == "not attempted None"
    assert lines[1].startswith("This exercise needs PyTorch") and "pip install torch" in lines[1]
    assert lines[2] == "True True"
    assert lines[-2].endswith("True True") and lines[-1] == "correct True"


def test_torch_is_imported_only_when_an_exercise_needs_it():
    code = (
        "import sys; from mha_lesson.exercises import *\n"
        "check('00.double', lambda x: x); hint('08.works'); status(); print('torch' in sys.modules)\n"
        "check('08.blocked', lambda lengths, S: 1); print('torch' in sys.modules)"
    )
    assert run(code) == ["False", "True"]
