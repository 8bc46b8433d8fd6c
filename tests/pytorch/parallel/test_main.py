"""`torchrun -m mha_lesson.pytorch.parallel`: it starts, or says how."""

import os
import subprocess
import sys

import pytest

from mha_lesson.course.paths import ROOT

torch = pytest.importorskip("torch", reason="torch is not installed (it has no build for this machine)")

from mha_lesson.pytorch import parallel  # noqa: E402
from mha_lesson.pytorch.parallel.__main__ import main  # noqa: E402

pytestmark = pytest.mark.torch


def test_torchrun_starts_the_same():
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    if torch.cuda.is_available() and torch.cuda.device_count() < 2:
        variables["CUDA_VISIBLE_DEVICES"] = ""
    done = subprocess.run(
        [*command, "-m", "mha_lesson.pytorch.parallel", "ring"],
        env=variables, cwd=ROOT, capture_output=True, text=True, timeout=180,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("rank ")]
    expected = parallel.ring_bytes(2, 3, 24, 16, 2)
    for rank, line in enumerate(lines):
        assert line.startswith(f"rank {rank} of 2 on c") and "error" in line and f"bytes {expected}" in line
    assert len(lines) == 2


def test_without_torchrun_it_says_how(monkeypatch, capsys):
    monkeypatch.delenv("RANK", raising=False)
    assert main(["ring"]) == 1 and "torchrun --nproc-per-node 2" in capsys.readouterr().err
    assert main(["rings"]) == 2 and "expected one of heads, ring, got rings" in capsys.readouterr().err
