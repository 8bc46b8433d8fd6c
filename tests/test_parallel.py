"""Attention over several processes: equal to one process, bytes as predicted, and no silence when one dies."""

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

torch = pytest.importorskip("torch", reason="torch is not installed (it has no build for this machine)")

import torch.distributed as dist  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from mha_lesson.pytorch import MultiHeadAttention, parallel  # noqa: E402
from mha_lesson.pytorch.parallel import HeadParallelAttention, Traffic, heads, launch, ring_attention  # noqa: E402
from mha_lesson.pytorch.parallel.command import main  # noqa: E402
from mha_lesson.pytorch.parallel.ring import ring_work  # noqa: E402
from mha_lesson.steps.gpu import ring_step  # noqa: E402
from tests import parallel_workers as workers  # noqa: E402
from tests.reference import says  # noqa: E402

pytestmark = pytest.mark.torch
ROOT = Path(__file__).resolve().parents[1]
NEAR = {"float64": 1e-12, "float32": 1e-6}


@pytest.fixture(scope="module")
def two():
    """What every rank saw; the processes are started once."""
    return parallel.run(all_of_it, 2)


@pytest.fixture(scope="module")
def four():
    return parallel.run(all_of_it, 4)


@pytest.fixture(params=["two", "four"])
def found(request):
    return request.getfixturevalue(request.param)


def all_of_it(rank, world):
    return workers.everything(rank, world) | (four_ranks(rank, world) if world == 4 else {})


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


def test_pytorchs_own_tools_agree(two):
    for seen in two:
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


# ------------------------------------------------------------------------------ four ranks, uneven heads


def features(heads, D):
    return [h * D + i for h in heads for i in range(D)]


def uneven_heads(rank, world, num_heads, num_kv_heads, rotary_base=None):
    """Distances from one process when key/value heads have copies, each query head with a mask of its own."""
    torch.manual_seed(0)
    D, dtype = 4, torch.float64
    layer = MultiHeadAttention(num_heads * D, num_heads, num_kv_heads, rotary_base=rotary_base, dtype=dtype)
    torch.nn.init.normal_(layer.k_proj.bias)
    torch.nn.init.normal_(layer.v_proj.bias)
    layer.out_proj.bias.requires_grad_(False)
    x, probe = (torch.randn(2, 5, num_heads * D, dtype=dtype) for _ in range(2))
    keep = torch.rand(2, num_heads, 5, 5) > 0.4
    keep[1, :, 2] = False  # a query that may attend to nothing
    mine = HeadParallelAttention.from_layer(layer)
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    whole, output = layer(a, keep=keep), mine(b, keep=keep)
    whole.backward(probe)
    output.backward(probe)
    mine.add_copies()
    rows, kv_rows = features(mine.heads, D), features(mine.kv_heads, D)
    pairs = {"output": (output, whole), "input": (b.grad, a.grad)}
    pairs["one sequence"] = mine(x[0], causal=True), layer(x[0], causal=True)
    pairs["one sequence, masks"] = mine(x[1], keep=keep[1]), layer(x[1], keep=keep[1])
    for name in ("q_proj", "k_proj", "v_proj"):
        for part in ("weight", "bias"):
            got, want = (getattr(getattr(l, name), part).grad for l in (mine.local, layer))
            pairs[f"{name}.{part}"] = got, want[rows if name == "q_proj" else kv_rows]
    pairs["out_proj.weight"] = mine.local.out_proj.weight.grad, layer.out_proj.weight.grad[:, rows]
    distances = {name: workers.far(*pair) for name, pair in pairs.items()}
    return distances, mine.kv_heads, mine.out_bias.requires_grad


def rounded_once(rank, world, dtype):
    """Whether a ring in half precision is as exact as one rounding at the end."""
    rng = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(1, 3, 5 * world, 7, generator=rng).to(dtype) for _ in range(3))
    mine = slice(5 * rank, 5 * (rank + 1))
    output = ring_attention(*(x[:, :, mine] for x in (q, k, v)), causal=True)
    exact = F.scaled_dot_product_attention(q.double(), k.double(), v.double(), is_causal=True)[:, :, mine]
    half_a_digit = torch.finfo(dtype).eps / 2
    return output.dtype == dtype and bool(((output - exact).abs() <= exact.abs() * half_a_digit + 1e-6).all())


def bytes_seen(rank, world):
    """(what Traffic counted, what torch.distributed was handed) for both ways, seen from outside."""
    seen = {"bytes": 0}
    all_reduce, batch = dist.all_reduce, dist.batch_isend_irecv

    def watched_reduce(tensor, *args, **kwargs):
        seen["bytes"] += tensor.nbytes
        return all_reduce(tensor, *args, **kwargs)

    def watched_batch(operations):
        seen["bytes"] += sum(one.tensor.nbytes for one in operations if one.op is dist.isend)
        return batch(operations)

    found = []
    dist.all_reduce, dist.batch_isend_irecv = watched_reduce, watched_batch
    try:
        for dtype in (torch.float64, torch.float32, torch.bfloat16):
            with Traffic() as outer, Traffic() as inner:
                layer = MultiHeadAttention(20, 4, dtype=dtype)
                HeadParallelAttention.from_layer(layer)(torch.ones(2, 5, 20, dtype=dtype))
                ring_attention(*(torch.ones(2, h, 5, 7, dtype=dtype) for h in (6, 2, 2)))
            found.append((outer.bytes, inner.bytes, seen["bytes"]))
            seen["bytes"] = 0
    finally:
        dist.all_reduce, dist.batch_isend_irecv = all_reduce, batch
    ring_attention(*torch.ones(3, 1, 2, 3, 4))  # after it was closed
    return found, outer.bytes


def sums(rank, world):
    """What f and g make of a tensor of ones, both ways, and whether that tensor is still what it was."""
    found = {}
    for name, function in (("f", heads._Copy), ("g", heads._Sum)):
        x, gradient = torch.ones(3, requires_grad=True), torch.ones(3)
        forwards = function.apply(x, None)
        (backwards,) = torch.autograd.grad(forwards, x, gradient)
        untouched = bool((x == 1).all() and (gradient == 1).all())
        found[name] = forwards[0].item(), backwards[0].item(), untouched
    return found


def in_a_group(rank, world):
    """Ranks 1 and 3 alone share a layer and a text; the others have nothing to do with it."""
    group = dist.new_group([1, 3])
    if rank not in (1, 3):
        return None
    place = dist.get_rank(group)  # 0 or 1
    torch.manual_seed(3)
    layer, x = MultiHeadAttention(8, 2, dtype=torch.float64), torch.randn(2, 3, 8, dtype=torch.float64)
    q, k, v = torch.randn(3, 2, 3, 10, 4, dtype=torch.float64)
    piece = slice(5 * place, 5 * (place + 1))
    ring = ring_attention(*(t[:, :, piece] for t in (q, k, v)), causal=True, group=group)
    whole = F.scaled_dot_product_attention(q, k, v, is_causal=True)[:, :, piece]
    mine = HeadParallelAttention.from_layer(layer, group)
    return workers.far(mine(x), layer(x)), workers.far(ring, whole), mine.heads


def refused_by_four(rank, world):
    x = torch.ones(1, 2, 3, 4)
    layer = HeadParallelAttention.from_layer(MultiHeadAttention(20, 4))
    tokens = torch.ones(2, 5, 20)
    half = torch.float16 if rank else torch.bfloat16  # as many bytes

    def says_of(action):
        try:
            action()
        except (ValueError, TypeError) as error:
            return f"{type(error).__name__} {error}"
        return "nothing was raised"

    return {
        "not all causal": says_of(lambda: ring_attention(x, x, x, causal=rank == 1)),
        "two formats": says_of(lambda: ring_attention(*(x.to(half),) * 3)),
        "three axes": says_of(lambda: ring_attention(x[0], x[0], x[0])),
        "whole numbers": says_of(lambda: ring_attention(*(x.long(),) * 3)),
        "my heads only": says_of(lambda: layer(tokens, keep=torch.ones(2, 3, 5, 5, dtype=torch.bool))),
        "numbers": says_of(lambda: layer(tokens, keep=torch.ones(5, 5))),
        "another layer": says_of(lambda: HeadParallelAttention.from_layer(torch.nn.MultiheadAttention(12, 3))),
    }


def four_ranks(rank, world):
    return {
        "uneven": {case: uneven_heads(rank, world, *case) for case in UNEVEN},
        "halves": {str(dtype): rounded_once(rank, world, dtype) for dtype in (torch.float16, torch.bfloat16)},
        "bytes": bytes_seen(rank, world),
        "sums": sums(rank, world),
        "group": in_a_group(rank, world),
        "disagree": refused_by_four(rank, world),
    }


# (heads, key/value heads, base of rotary positions): the key/value heads that each of 4 ranks holds
UNEVEN = {
    (12, 3, None): [[0], [0, 1, 1], [1, 1, 2], [2]],
    (12, 6, None): [[0, 0, 1], [1, 2, 2], [3, 3, 4], [4, 5, 5]],
    (24, 6, None): [[0, 0, 0, 0, 1, 1], [1, 1, 2, 2, 2, 2], [3, 3, 3, 3, 4, 4], [4, 4, 5, 5, 5, 5]],
    (4, 1, None): [[0], [0], [0], [0]],
    (8, 4, 100.0): [[0], [1], [2], [3]],
}


@pytest.mark.parametrize("case", UNEVEN, ids=str)
def test_shared_heads_rotary_positions_and_masks_of_each_head(four, case):
    for rank, seen in enumerate(four):
        distances, kv_heads, trains_bias = seen["uneven"][case]
        assert kv_heads == UNEVEN[case][rank]
        assert max(distances.values()) < 1e-12, (rank, distances)
        assert not trains_bias, "a frozen parameter stays frozen"


def test_f_sums_backwards_g_forwards_and_nobodys_tensor_is_written_into(four):
    for seen in four:
        assert seen["sums"] == {"f": (1, 4, True), "g": (4, 1, True)}


def test_a_ring_in_half_precision_rounds_once(four):
    for seen in four:
        assert seen["halves"] == {"torch.float16": True, "torch.bfloat16": True}


def test_counted_is_what_torch_distributed_is_handed(four):
    for seen in four:
        found, closed = seen["bytes"]
        for size, (outer, inner, handed) in zip((8, 4, 2), found, strict=True):
            predicted = parallel.head_parallel_bytes(2, 5, 20, size) + parallel.ring_bytes(2, 2, 5, 7, 4, size)
            assert outer == inner == handed == predicted
        assert closed == found[-1][0]


def test_a_part_of_the_ranks_can_work_alone(four):
    assert four[0]["group"] is four[2]["group"] is None
    for place, rank in enumerate((1, 3)):
        heads, ring, which = four[rank]["group"]
        assert heads < 1e-12 and ring < 1e-12 and which == [place]


def test_ranks_that_disagree_are_all_told(four):
    for seen in four:
        refused = seen["disagree"]
        assert "ValueError" in refused["not all causal"] and "causal on all ranks" in refused["not all causal"]
        assert "shapes, dtype and causal on all ranks" in refused["two formats"]
        assert "four axes" in refused["three axes"]
        assert "TypeError q, k, v: expected one of" in refused["whole numbers"]
        assert "ValueError keep: expected a shape that broadcasts" in refused["my heads only"]
        assert "keep: expected a boolean mask" in refused["numbers"]
        assert "TypeError layer: expected a mha_lesson" in refused["another layer"]


# ------------------------------------------------------------------------------ starting and ending


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """A folder of this test's own for temporary files: the machine's is shared with other programs."""
    for name in ("TMPDIR", "TEMP", "TMP"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def nothing_is_left(temporary):
    return not multiprocessing.active_children() and not list(temporary.iterdir())


def adds_in_place(rank, world, numbers):
    numbers += rank
    return numbers


def one_sleeps(rank, world):
    if rank == 1:
        raise ValueError("before the other is done")
    time.sleep(600)


def waits(rank, world):
    print("working", flush=True)
    time.sleep(600)


def test_every_rank_returns_what_it_found_and_nothing_is_printed(temporary, capfd):
    """Two runs at once, of two ranks and of one: they do not meet."""
    numbers = torch.zeros(3)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(parallel.run, workers.returns, 2, 3, 4)
        second = pool.submit(parallel.run, adds_in_place, 1, numbers + 5)
        results, (alone,) = first.result(), second.result()
    assert [r["rank"] for r in results] == [0, 1] and {r["sum"] for r in results} == {7}
    assert all(r["array"].tolist() == [i] * 3 and r["tensor"].tolist() == [i] * 2 for i, r in enumerate(results))
    assert alone.tolist() == [5, 5, 5]
    assert nothing_is_left(temporary)
    assert capfd.readouterr() == ("", "")


def test_each_rank_gets_a_copy_of_what_is_passed():
    numbers = torch.zeros(3)
    _, args = pickle.loads(launch._packed(adds_in_place, (numbers,)))
    adds_in_place(7, 8, *args)
    assert args[0].tolist() == [7, 7, 7] and numbers.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    "worker, words",
    [
        (workers.raises, "rank 1 raised KeyError: 'the second rank cannot go on'"),
        (one_sleeps, says("rank 1 raised ValueError: before the other is done", "in one_sleeps")),
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
    launch._result(tmp_path, 0).touch()  # it waits for the others
    with pytest.raises(RuntimeError, match=r"ranks \[1, 2\] had not ended after 9 seconds"):
        launch._wait(ended(None, None, None), tmp_path, time.monotonic() - 1, 9)


INTERRUPTED = """
import multiprocessing, os, signal, tempfile
from mha_lesson.pytorch.parallel import run
from tests.test_parallel import waits
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


def test_more_ranks_than_cuda_devices_are_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("LOCAL_RANK", "1")
    with pytest.raises(RuntimeError, match=says("at most 1 processes", "--nproc-per-node 1", "CUDA_VISIBLE_DEVICES")):
        launch.connect_from_environment()
