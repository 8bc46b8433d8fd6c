"""`benchmark`: words, options, threads."""

import subprocess

import pytest

from mha_lesson import benchmark
from tests.benchmark.helpers import command


def test_each_command_has_defaults_of_its_own():
    found = [benchmark.parser().parse_args([name]) for name in ("numpy", "layers", "decode", "long")]
    assert [options.heads for options in found] == [8, 12, 32, 8]
    assert [options.sizes[-1] for options in found] == [16384, 2048, 8192, 8192]
    assert [options.weigh for options in found] == [True, True, False, True]


def test_threads_that_come_too_late_start_another_process(monkeypatch):
    started = {}

    def run(command, env):
        started.update(command=command, env=env)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(command.subprocess, "run", run)
    assert benchmark.main(["numpy", "--threads", "2"]) == 0
    assert started["command"][1:] == ["-c", command.AGAIN, "numpy", "--threads", "2"]
    assert {started["env"][name] for name in benchmark.THREAD_VARIABLES} == {"2"}


def test_a_wrong_option_is_named(capsys):
    with pytest.raises(SystemExit):
        benchmark.main(["numpy", "--dtypes", "float16"])
    assert "float32 or float64" in capsys.readouterr().err
