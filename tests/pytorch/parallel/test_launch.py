"""Processes: started, ended, and no silence when one dies."""

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from mha_lesson.course.paths import ROOT

torch = pytest.importorskip("torch", reason="torch is not installed (it has no build for this machine)")

from mha_lesson.pytorch import parallel  # noqa: E402
from mha_lesson.pytorch.parallel import launch  # noqa: E402
from tests.pytorch.parallel import workers  # noqa: E402
from tests.reference import says  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """A folder of this test's own for temporary files: the machine's is shared with other programs."""
    for name in ("TMPDIR", "TEMP", "TMP"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def nothing_is_left(temporary):
    return not multiprocessing.active_children() and not list(temporary.iterdir())


def test_every_rank_returns_what_it_found_and_nothing_is_printed(temporary, capfd):
    """Two runs at once, of two ranks and of one: they do not meet."""
    numbers = torch.zeros(3)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(parallel.run, workers.returns, 2, 3, 4)
        second = pool.submit(parallel.run, workers.adds_in_place, 1, numbers + 5)
        results, (alone,) = first.result(), second.result()
    assert [r["rank"] for r in results] == [0, 1] and {r["sum"] for r in results} == {7}
    assert all(r["array"].tolist() == [i] * 3 and r["tensor"].tolist() == [i] * 2 for i, r in enumerate(results))
    assert alone.tolist() == [5, 5, 5]
    assert nothing_is_left(temporary)
    assert capfd.readouterr() == ("", "")


def test_each_rank_gets_a_copy_of_what_is_passed():
    numbers = torch.zeros(3)
    _, args = pickle.loads(launch._packed(workers.adds_in_place, (numbers,)))
    workers.adds_in_place(7, 8, *args)
    assert args[0].tolist() == [7, 7, 7] and numbers.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    "worker, words",
    [
        (workers.raises, "rank 1 raised KeyError: 'the second rank cannot go on'"),
        (workers.one_sleeps, says("rank 1 raised ValueError: before the other is done", "in one_sleeps")),
        pytest.param(
            workers.is_killed, r"rank 0 died with exit code -9.*SIGKILL",
            marks=pytest.mark.skipif(os.name == "nt", reason="Windows has no signals"),
        ),
    ],
)  # fmt: skip
def test_a_rank_that_dies_is_named_and_the_others_end(worker, words, temporary, capfd):
    start = time.monotonic()
    with pytest.raises(RuntimeError, match=words):
        parallel.run(worker, 2)
    assert time.monotonic() - start < 100, "not after the timeout of 120 seconds"
    assert nothing_is_left(temporary)
    assert capfd.readouterr() == ("", "")


def test_ranks_that_hang_are_ended_in_time(temporary):
    with pytest.raises(RuntimeError, match=r"ranks \[0, 1\] had not ended after 3 seconds"):
        parallel.run(workers.sleeps, 2, timeout=3)
    assert nothing_is_left(temporary)


def report(folder, rank, at, text):
    Path(folder, f"begun{rank}").touch()
    Path(folder, f"raised{rank}").write_bytes(pickle.dumps((at, f"Traceback\n{text}\n")))


def ended(*codes):
    return [SimpleNamespace(exitcode=code, sentinel=None) for code in codes]


def test_the_first_that_raised_is_blamed_and_not_those_that_lost_it(tmp_path):
    report(tmp_path, 0, 8.0, "RuntimeError: Connection closed by peer")
    report(tmp_path, 2, 7.0, "KeyError: 5")
    assert launch._why(ended(1, 0, 1), tmp_path).startswith("rank 2 raised KeyError: 5; the others were ended")


def test_one_that_died_without_a_word_is_blamed_before_all(tmp_path):
    report(tmp_path, 0, 8.0, "RuntimeError: Connection closed by peer")
    Path(tmp_path, "begun1").touch()
    assert launch._why(ended(1, 7), tmp_path).startswith("rank 1 died with exit code 7; the others were ended")


def test_one_that_did_not_begin_is_told_of_the_guard(tmp_path):
    text = launch._why(ended(1, None), tmp_path)
    assert text.startswith("rank 0 ended with exit code 1 before its work began") and '__name__ == "__main__"' in text


def test_only_ranks_without_a_result_are_late(tmp_path):
    launch._result(tmp_path, 0).touch()  # it workers.waits for the others
    with pytest.raises(RuntimeError, match=r"ranks \[1, 2\] had not ended after 9 seconds"):
        launch._wait(ended(None, None, None), tmp_path, time.monotonic() - 1, 9)


INTERRUPTED = """
import multiprocessing, os, signal, tempfile
from mha_lesson.pytorch.parallel import run
from tests.pytorch.parallel.workers import waits
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job inherits that it is ignored
try:
    run(waits, 1)
except KeyboardInterrupt:
    left = [*multiprocessing.active_children(), *os.listdir(tempfile.gettempdir())]
    print("interrupted, left:", left, flush=True)
run(waits, 1)
"""


@pytest.mark.skipif(os.name == "nt", reason="Windows has no signals")
def test_an_interrupt_ends_the_ranks_and_so_does_the_death_of_the_program(temporary):
    program = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED], env={**os.environ, "PYTHONPATH": str(ROOT)}, cwd=ROOT, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    try:
        assert program.stdout.readline() == "working\n"
        os.killpg(program.pid, signal.SIGINT)  # as a terminal and a notebook's kernel do: to all of them
        assert program.stdout.readline() == "interrupted, left: []\n"
        assert program.stdout.readline() == "working\n"
        program.kill()
        # The end of the output is reached when the last process that could write to it is gone.
        assert program.communicate(timeout=30) == ("", "")
    finally:
        if program.poll() is None:
            os.killpg(program.pid, signal.SIGKILL)
            program.communicate()


def test_a_function_of_the_notebook_is_refused_with_the_mend():
    def here(rank, world):
        return rank

    for worker in (here, lambda rank, world: rank):
        with pytest.raises(ValueError, match=r"my_workers\.py"):
            parallel.run(worker, 2)
    with pytest.raises(ValueError, match="1 process or more"):
        parallel.run(workers.returns, 0)
    with pytest.raises(ValueError, match="timeout: expected seconds above 0, got 0"):
        parallel.run(workers.returns, 1, timeout=0)
    with pytest.raises(TypeError, match="worker: expected a function of a module, got str"):
        parallel.run("returns", 1)
    with pytest.raises(TypeError, match=says("args: expected what can be sent", "lambda")):
        parallel.run(workers.returns, 1, lambda: 1, 2)


def test_a_function_of_a_cell_is_known_by_its_program(monkeypatch):
    """A cell's function says it is of __main__; so does a script's, but a new process can read that file."""

    def in_main(rank, world):
        return rank

    in_main.__module__, in_main.__qualname__ = "__main__", "in_main"
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(__file__="script.py"))
    launch._check(in_main, 1, 1.0)
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace())
    with pytest.raises(ValueError, match="got in_main of the notebook"):
        launch._check(in_main, 1, 1.0)


def test_more_ranks_than_cuda_devices_are_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("LOCAL_RANK", "1")
    with pytest.raises(RuntimeError, match=says("at most 1 processes", "--nproc-per-node 1", "CUDA_VISIBLE_DEVICES")):
        launch.connect_from_environment()


def test_a_machine_that_does_not_find_itself_is_told_what_to_do(tmp_path, monkeypatch):
    def fails(*_, **__):
        raise RuntimeError("makeDeviceForHostname(): unsupported gloo device")

    monkeypatch.setattr(launch.dist, "init_process_group", fails)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    threads = torch.get_num_threads()
    with pytest.raises(RuntimeError, match=says("could not find each other", "unsupported gloo device", "or read on")):
        launch._connect(0, 1, str(tmp_path), 1)
    torch.set_num_threads(threads)
