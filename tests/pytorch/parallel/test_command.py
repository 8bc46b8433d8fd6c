"""The demos as a word of the command line, and under torchrun."""

import os
import subprocess
import sys

import pytest

from mha_lesson.course.paths import ROOT

torch = pytest.importorskip("torch", reason="torch is not installed (it has no build for this machine)")

from mha_lesson.pytorch import parallel  # noqa: E402
from mha_lesson.pytorch.parallel import launch  # noqa: E402
from mha_lesson.pytorch.parallel.command import main  # noqa: E402

pytestmark = pytest.mark.torch


def test_torchrun_starts_the_same():
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    if torch.cuda.is_available() and torch.cuda.device_count() < 2:
        variables["CUDA_VISIBLE_DEVICES"] = ""
    done = subprocess.run(
        [*command, "-m", "mha_lesson", "parallel", "ring"],
        env=variables, cwd=ROOT, capture_output=True, text=True, timeout=180,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("rank ")]
    expected = parallel.ring_bytes(2, 3, 24, 16, 2)
    for rank, line in enumerate(lines):
        assert line.startswith(f"rank {rank} of 2 on c") and "error" in line and f"bytes {expected}" in line
    assert len(lines) == 2


def test_without_torchrun_it_starts_the_processes_itself(monkeypatch, capsys):
    monkeypatch.delenv("RANK", raising=False)
    assert main("ring", 3) == 0
    lines = capsys.readouterr().out.splitlines()
    expected = f"bytes {parallel.ring_bytes(2, 3, 24, 16, 3)}"
    assert [line.split(":")[0] for line in lines] == [f"rank {rank} of 3 on cpu" for rank in range(3)]
    assert all(expected in line for line in lines)
    assert main("ring", 0) == 1 and "expected 1 process or more" in capsys.readouterr().err
    with pytest.raises(RuntimeError, match="torchrun --nproc-per-node 2 -m mha_lesson parallel heads"):
        launch.connect_from_environment()
