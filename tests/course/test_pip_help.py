"""pip's words, explained."""

import pytest

from mha_lesson.course import pip_help
from tests.course.helpers import NO_TORCH, OFFLINE


@pytest.mark.parametrize(
    ("output", "what"),
    [
        (OFFLINE, "could not be reached"),
        ("ERROR: No matching distribution found for jupyterlab==4.6.6 (from versions: none)", "no packages at all"),
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "disk is full"),
        ("OSError: [WinError 5] Access is denied: 'C:\\\\x'", "may not be written"),
        ("HINT: This error might have occurred since this system does not have Windows Long Path support", "too long"),
        ("SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] ...", "secure connection"),
        ("(from versions: 2.1.0, 2.2.0)\nERROR: No matching distribution found for torch==2.13.0", "no build for this"),
        ("zipfile.BadZipFile: File is not a zip file", "damaged"),
        ("Segmentation fault", "pip stopped"),
    ],
)
def test_pips_words_are_explained(output, what):
    said, mend = pip_help.explain(output.splitlines())
    assert what in said
    assert mend


def test_the_line_that_tells_is_chosen():
    lines = [
        "Collecting x",
        "ERROR: the cause",
        "note: This error originates from a subprocess",
        "[notice] upgrade",
        "",
    ]
    assert pip_help.last_relevant_line(lines) == "ERROR: the cause"
    assert pip_help.last_relevant_line(["only this", ""]) == "only this"
    assert pip_help.last_relevant_line([]) == "pip said nothing"


def test_torch_is_left_out_only_if_it_alone_is_missing():
    assert pip_help.lacks("torch", NO_TORCH.splitlines())
    assert not pip_help.lacks("torch", ["ERROR: No matching distribution found for torch==2.13.0"]), "there: no network"
    assert not pip_help.lacks("torch", NO_TORCH.replace("torch==", "torchvision==").splitlines())
    assert not pip_help.lacks("torch", OFFLINE.splitlines())


@pytest.mark.parametrize(
    ("system", "machine", "macos", "said"),
    [
        ("darwin", "arm64", "13.6.1", "torch needs macOS 14 or newer, this is 13.6.1."),
        ("darwin", "arm64", "14.0", "torch has no build for this machine."),
        ("darwin", "arm64", "", "torch has no build for this machine."),
        ("win32", "ARM64", "", "with an x64 Python, which runs there too, pip install torch adds it"),
        ("linux", "riscv64", "", "torch has no build for this machine."),
    ],
)
def test_why_there_is_no_torch(monkeypatch, system, machine, macos, said):
    monkeypatch.setattr(pip_help.sys, "platform", system)
    monkeypatch.setattr(pip_help.platform, "machine", lambda: machine)
    monkeypatch.setattr(pip_help.platform, "mac_ver", lambda: (macos, ("", "", ""), machine))
    assert said in pip_help.no_torch()
