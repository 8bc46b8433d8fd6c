"""Attention over several processes: equal to one process, bytes as predicted, and no silence when one dies."""

import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from mha_lesson.pytorch import parallel  # noqa: E402
from mha_lesson.pytorch.parallel.ring import ring_work  # noqa: E402
from mha_lesson.steps.gpu import ring_step  # noqa: E402
from tests import parallel_workers as workers  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
NEAR = {"float64": 1e-12, "float32": 1e-6}


@pytest.fixture(scope="module", params=[2, 4])
def found(request):
    """What every rank saw; the processes are started once."""
    return parallel.run(workers.everything, request.param)


def test_heads_shared_out_give_output_and_gradients_of_one_process(found):
    for rank, seen in enumerate(found):
        for name, layer in seen["layers"].items():
            near = NEAR[name.split(",")[0]]
            assert layer["output"] < 3 * near, (rank, name)  # outputs up to 3
            assert layer["gradients"] < 10 * near, (rank, name)
            assert layer["same everywhere"] == 0, (rank, name)


def test_a_ring_gives_the_output_of_one_process(found):
    for rank, seen in enumerate(found):
        for name, ring in seen["rings"].items():
            assert ring["output"] < NEAR[name.split(",")[0]], (rank, name)


def test_bytes_are_those_predicted(found):
    for seen in found:
        for one in (*seen["layers"].values(), *seen["rings"].values()):
            assert one["bytes"] == one["predicted"] > 0
        assert seen["layers"]["float64, 4 kv heads"]["calls"] == {"all_reduce": 1}
        counted, predicted, calls = seen["backward"]
        assert counted == predicted and calls == {"all_reduce": 2}


def test_what_cannot_be_shared_out_is_refused(found):
    for seen in found:
        refused = seen["refused"]
        assert f"{len(found)} ranks can share evenly, got 3" in refused["heads"]
        assert "without gradients" in refused["gradients"]
        assert "pieces of one size" in refused["pieces"] and "[3, 4" in refused["pieces"]
        assert "as many tokens in each" in refused["tokens"]


def test_pytorchs_own_tools_agree(found):
    if len(found) == 2:
        for seen in found:
            assert max(seen["dtensor"]) < 1e-12


def test_predictions_by_hand():
    assert parallel.head_parallel_bytes(2, 3, 5, 4) == 2 * 3 * 5 * 4
    assert parallel.head_parallel_bytes(2, 3, 5, 4, backward=True) == 2 * 2 * 3 * 5 * 4
    # keys and values: 2 sequences, 3 heads, 5 tokens, width 7, half precision; three of four ranks must be reached
    assert parallel.ring_bytes(2, 3, 5, 7, world=4, bytes_per_number=2) == (2 * 3 * 5 * 7 * 2) * 2 * 3
    assert parallel.ring_bytes(2, 3, 5, 7, world=1) == 0


@pytest.mark.parametrize("world", [1, 2, 5])
def test_work_is_counted_and_zigzag_is_fair(world):
    plain, fair = ring_work(world), ring_work(world, "zigzag")
    assert sum(plain) == sum(fair) == sum(range(1, 2 * world + 1))
    assert len(set(fair)) == 1 and plain == sorted(plain)
    with pytest.raises(ValueError, match='expected "plain" or "zigzag"'):
        ring_work(world, "round")


def test_the_ring_turns_as_the_lesson_says():
    assert [ring_step(1, step, 4, 1)[0] for step in range(4)] == [1, 0, 3, 2]


# ------------------------------------------------------------------------------ starting and ending


def nothing_is_left(before):
    files = set(Path(tempfile.gettempdir()).iterdir()) - before
    mine = [f.name for f in files if f.name.startswith(("mha_lesson_", "pytorch-errorfile"))]
    return not multiprocessing.active_children() and not mine


@pytest.fixture
def temporary_files():
    return set(Path(tempfile.gettempdir()).iterdir())


def test_every_rank_returns_what_it_found_and_nothing_is_printed(temporary_files, capfd):
    results = parallel.run(workers.returns, 2, 3, b"".__len__())
    assert [r["rank"] for r in results] == [0, 1] and {r["sum"] for r in results} == {3}
    assert all(r["array"].tolist() == [i] * 3 and r["tensor"].tolist() == [i] * 2 for i, r in enumerate(results))
    assert nothing_is_left(temporary_files)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "worker, words",
    [
        (workers.raises, "rank 1 raised KeyError: 'the second rank cannot go on'"),
        pytest.param(
            workers.is_killed, r"rank 0 died with exit code -9.*SIGKILL",
            marks=pytest.mark.skipif(os.name == "nt", reason="Windows has no signals"),
        ),
    ],
)  # fmt: skip
def test_a_rank_that_dies_is_named_and_the_others_end(worker, words, temporary_files):
    start = time.monotonic()
    with pytest.raises(RuntimeError, match=words):
        parallel.run(worker, 2)
    assert time.monotonic() - start < 60, "not after the timeout of 120 seconds"
    assert nothing_is_left(temporary_files)


def test_ranks_that_hang_are_ended_in_time(temporary_files):
    with pytest.raises(RuntimeError, match=r"ranks \[0, 1\] had not ended after 3 seconds"):
        parallel.run(workers.sleeps, 2, timeout=3)
    assert nothing_is_left(temporary_files)


def test_a_function_of_the_notebook_is_refused_with_the_mend():
    def here(rank, world):
        return rank

    for worker in (here, lambda rank, world: rank):
        with pytest.raises(ValueError, match=r"my_workers\.py"):
            parallel.run(worker, 2)
    with pytest.raises(ValueError, match="1 process or more"):
        parallel.run(workers.returns, 0)


def test_torchrun_starts_the_same():
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*command, "-m", "mha_lesson.pytorch.parallel", "ring"], env=variables, cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("rank 0 of 2 on cpu: error") == done.stdout.count("rank 1 of 2 on cpu: error") == 1


def test_without_torchrun_it_says_how():
    done = subprocess.run(
        [sys.executable, "-m", "mha_lesson.pytorch.parallel", "ring"],
        env={**{k: v for k, v in os.environ.items() if k != "RANK"}, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1 and "torchrun --nproc-per-node 2" in done.stderr and "Traceback" not in done.stderr
