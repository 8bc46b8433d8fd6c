"""Start processes from a notebook, and get back what each returned: or a clear error, soon.

`run` uses PyTorch's multiprocessing with fresh processes ("spawn"), which meet through a file in a
temporary folder: no port that another program may have. They talk over this machine's loopback.

A process that dies takes the others with it, and its error is raised here. Nothing is left behind.
(One helper of Python's own, the resource tracker, stays until your program ends.)

Who is to blame? When one rank dies, the others lose their connection to it and raise, too. So each
writes down when it raised: the first counts, and one that died without a word counts before all.
"""

# Quoted word for word by tests/faults/faults.py: change both together.

import multiprocessing.connection
import os
import pickle
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
import types
import warnings
from collections.abc import Callable
from contextlib import contextmanager
from datetime import timedelta
from numbers import Integral
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

GRACE = 5.0  # seconds that a rank gets to end when it is asked to
SETTLE = 0.5  # seconds to see who else failed, before one is blamed

# ------------------------------------------------------------------------------ in the notebook


def run(worker: Callable, world_size: int, *args, timeout: float = 120.0) -> list[Any]:
    """[worker(rank, world_size, *args) for each rank], each in a process of its own, all connected.

    worker: a function of a module. One that was defined in a notebook does not exist in a new process.
    args: every rank gets its own copy of them.
    timeout: seconds for all of it. To start takes a few, and more on a busy machine.

    Raises
        ValueError    worker is no function of a module, world_size is below 1, timeout not above 0.
        TypeError     worker is no function, or args hold something that cannot be sent to a process.
        RuntimeError  a rank raised (with its error), died (with its exit code), or did not end in time.
    """
    _check(worker, world_size, timeout)
    job = _packed(worker, args)
    end = time.monotonic() + timeout
    with tempfile.TemporaryDirectory(prefix="mha_lesson_", ignore_cleanup_errors=True) as folder:
        context = mp.get_context("spawn")
        ranks = [
            context.Process(target=_rank, args=(rank, world_size, job, folder, timeout), name=f"rank {rank}")
            for rank in range(world_size)
        ]
        try:
            with _deaf():
                for process in ranks:
                    process.start()
            _wait(ranks, Path(folder), end, timeout)
            return [pickle.loads(_result(folder, rank).read_bytes()) for rank in range(world_size)]
        finally:  # also when you interrupt
            with _deaf():
                _end(ranks)


def _wait(ranks, folder: Path, end: float, timeout: float) -> None:
    """Until every rank has ended well; an error as soon as one has not."""
    while True:
        codes = [process.exitcode for process in ranks]  # asked once: between two questions one may die
        if any(codes):
            raise RuntimeError(_why(ranks, folder))
        if None not in codes:
            return
        left = end - time.monotonic()
        if left <= 0:
            late = [rank for rank in range(len(ranks)) if not _result(folder, rank).exists()]
            raise RuntimeError(
                f"ranks {late} had not ended after {timeout:g} seconds and were ended. Does one wait for a message "
                f"that no other sends? If there is much to do, pass timeout=..."
            )
        running = [process.sentinel for process, code in zip(ranks, codes, strict=True) if code is None]
        multiprocessing.connection.wait(running, left)


def _why(ranks, folder: Path) -> str:
    """What to say of the rank that failed first."""
    until = time.monotonic() + SETTLE
    while not _dead(ranks, folder) and time.monotonic() < until and any(p.exitcode is None for p in ranks):
        time.sleep(0.05)
    for rank in _dead(ranks, folder):
        code = ranks[rank].exitcode
        if not Path(folder, f"begun{rank}").exists():
            return (
                f"rank {rank} ended with exit code {code} before its work began; the others were ended. In a script, "
                f'the call of run must stand under: if __name__ == "__main__":'
            )
        return (
            f"rank {rank} died with exit code {code}{_signal(code)}; the others were ended. "
            f"Out of memory? A crash in a library? It could say nothing itself."
        )
    reports = [(*pickle.loads(file.read_bytes()), int(file.name[6:])) for file in folder.glob("raised*")]
    _, text, rank = min(reports)  # the first
    return f"rank {rank} raised {text.strip().splitlines()[-1]}; the others were ended. What it was doing:\n{text}"


def _dead(ranks, folder: Path) -> list[int]:
    """The ranks that ended badly and could not say why."""
    return [r for r, process in enumerate(ranks) if process.exitcode and not Path(folder, f"raised{r}").exists()]


def _signal(code: int) -> str:
    try:
        return f" (signal {signal.Signals(-code).name})" if code < 0 else ""
    except ValueError:
        return ""


def _end(ranks) -> None:
    """No process is left: asked first, then killed."""
    ranks = [process for process in ranks if process.pid is not None]  # those that were started
    for process in ranks:
        if process.is_alive():
            process.terminate()
    for process in ranks:
        process.join(GRACE)
        if process.is_alive():
            process.kill()
            process.join()
        process.close()


@contextmanager
def _deaf():
    """No interrupt inside, so that no process is half started or half ended.

    A process that is started inside inherits it: an interrupt goes to all of a program's processes,
    and only this one should answer.
    """
    if threading.current_thread() is not threading.main_thread():  # others get no interrupts
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)


def _packed(worker, args) -> bytes:
    """Both as bytes. Plain ones: PyTorch would otherwise share the memory of tensors with all ranks."""
    try:
        return pickle.dumps((worker, args))
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise TypeError(
            f"args: expected what can be sent to another process, got {error}. "
            f"Send plain data (numbers, text, arrays, tensors), and make the rest in the worker."
        ) from None


def _check(worker, world_size, timeout) -> None:
    if not isinstance(worker, types.FunctionType):
        raise TypeError(
            f"worker: expected a function of a module, got {type(worker).__name__}. "
            f"Write def worker(rank, world_size, ...), and give what it needs to run(worker, world_size, ...)."
        )
    name = worker.__qualname__
    in_notebook = worker.__module__ == "__main__" and not hasattr(sys.modules["__main__"], "__file__")
    if in_notebook or "<" in name:
        raise ValueError(
            f"worker: expected a function of a module, got {name} of the notebook. A new process would not know it: "
            f"write it into my_workers.py beside the notebook, and `from my_workers import {name.split('.')[-1]}`."
        )
    if not isinstance(world_size, Integral) or world_size < 1:
        raise ValueError(f"world_size: expected 1 process or more, got {world_size!r}.")
    if not timeout > 0:
        raise ValueError(f"timeout: expected seconds above 0, got {timeout!r}.")


# ------------------------------------------------------------------------------ in the processes


def _rank(rank: int, world_size: int, job: bytes, folder: str, timeout: float) -> None:
    """What a new process does: connect, work, write down the result."""
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    Path(folder, f"begun{rank}").touch()
    try:
        warnings.simplefilter("ignore")  # the parent's notebook has no place for them
        _connect(rank, world_size, folder, timeout)
        worker, args = pickle.loads(job)
        result = worker(rank, world_size, *args)
        _write(_result(folder, rank), pickle.dumps(result))
        dist.barrier()  # nobody leaves while another still talks to it
        dist.destroy_process_group()
    except BaseException as error:
        at = time.monotonic()  # one clock for all processes of a machine
        error.__traceback__ = error.__traceback__.tb_next  # without this function
        _write(Path(folder, f"raised{rank}"), pickle.dumps((at, "".join(traceback.format_exception(error)))))
        sys.stdout.flush()
        os._exit(1)  # at once: to tidy up, the connection would wait for the others


def _connect(rank: int, world_size: int, folder: str, timeout: float) -> None:
    torch.set_num_threads(1)
    # Without a name, gloo asks which address this machine's name has, and laptops often do not know.
    loopback = [name for _, name in socket.if_nameindex() if name in ("lo", "lo0")]  # Linux, macOS
    if loopback:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback[0])
    store = dist.FileStore(str(Path(folder, "meeting")), world_size)
    patience = timedelta(seconds=timeout + 60)  # longer than the parent's, whose message says more
    try:
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=patience)
    except RuntimeError as error:  # a VPN or a container's network may hide the machine from itself
        raise RuntimeError(
            f"The processes could not find each other on this machine ({error}). Set GLOO_SOCKET_IFNAME to the name of "
            f"a network interface that is up, or read on: nothing that follows needs this."
        ) from error


def _leave_with_parent() -> None:
    """If the notebook's kernel is killed, nobody else would end this process."""
    multiprocessing.parent_process().join()
    os._exit(1)


def _result(folder, rank: int) -> Path:
    return Path(folder, f"result{rank}")


def _write(path: Path, data: bytes) -> None:
    """The whole file or none: another process looks for it."""
    half = path.with_name(f"half-{path.name}")
    half.write_bytes(data)
    half.replace(path)


def connect_from_environment() -> tuple[int, int, torch.device]:
    """(rank, world size, device) of a process that torchrun has started; connects it."""
    if "RANK" not in os.environ:
        raise RuntimeError(
            "Start this with torchrun, which tells each process its rank: "
            "torchrun --nproc-per-node 2 -m mha_lesson parallel heads"
        )
    if not torch.cuda.is_available():
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        return dist.get_rank(), dist.get_world_size(), torch.device("cpu")
    here, devices = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    if here >= devices:
        raise RuntimeError(
            f"Expected at most {devices} processes on this machine, one for each CUDA device, got more. "
            f"Pass --nproc-per-node {devices}, or set CUDA_VISIBLE_DEVICES to nothing to use the CPU."
        )
    device = torch.device("cuda", here)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    return dist.get_rank(), dist.get_world_size(), device
