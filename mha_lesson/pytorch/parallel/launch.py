"""Start processes from a notebook, and get back what each returned: or a clear error, soon.

`run` uses PyTorch's own launcher, torch.multiprocessing with fresh processes ("spawn"), and meets
them through a file in a temporary folder: no port that another program may have.

A process that dies takes the others with it, and its error is raised here. Nothing is left behind.
"""

import os
import pickle
import tempfile
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

GRACE = 5.0  # seconds that ranks get to end after another one has died


def run(worker: Callable, world_size: int, *args, timeout: float = 120.0) -> list[Any]:
    """[worker(rank, world_size, *args) for each rank], each in a process of its own, all connected.

    worker: a function of a module. One that was defined in a notebook does not exist in a new process.
    timeout: seconds for all of it.

    Raises
        ValueError    worker is no function of a module, or world_size is below 1.
        RuntimeError  a rank raised (with its error), died (with its exit code), or did not end in time.
    """
    _check(worker, world_size)
    with tempfile.TemporaryDirectory(prefix="mha_lesson_", ignore_cleanup_errors=True) as folder:
        context = mp.start_processes(
            _rank, args=(worker, world_size, args, folder, timeout), nprocs=world_size, join=False, start_method="spawn"
        )
        try:
            _wait(context, time.monotonic() + timeout, timeout)
        finally:  # also when you interrupt
            _end(context.processes)
            for file in context.error_files:  # where a rank that raised has told PyTorch why
                Path(file).unlink(missing_ok=True)
        return [pickle.loads(Path(folder, f"result{rank}").read_bytes()) for rank in range(world_size)]


def _wait(context, end: float, timeout: float) -> None:
    """Until every rank has ended well; an error as soon as one has not."""
    while True:
        try:
            if context.join(timeout=0.2, grace_period=GRACE):
                return
        except mp.ProcessExitedException as died:
            signal = f" (signal {died.signal_name})" if died.signal_name else ""
            raise RuntimeError(
                f"rank {died.error_index} died with exit code {died.exit_code}{signal}; the others were ended. "
                f"Out of memory? A crash in a library? It could say nothing itself."
            ) from None
        except mp.ProcessRaisedException as raised:
            text = str(raised).strip().removeprefix("-- Process").strip()
            raise RuntimeError(
                f"rank {raised.error_index} raised {_last_line(text)}; the others were ended. "
                f"What it was doing:\n{text}"
            ) from None
        if time.monotonic() > end:
            alive = [rank for rank, process in enumerate(context.processes) if process.is_alive()]
            raise RuntimeError(
                f"ranks {alive} had not ended after {timeout:.0f} seconds and were ended. Does one wait for a message "
                f"that no other sends? If there is much to do, pass timeout=..."
            )


def _last_line(text: str) -> str:
    return text.strip().splitlines()[-1] if text.strip() else "an error"


def _end(processes) -> None:
    """No process is left: asked first, then killed."""
    for process in processes:
        if process.is_alive():
            process.terminate()
    for process in processes:
        process.join(GRACE)
        if process.is_alive():
            process.kill()
            process.join()


def _rank(rank: int, worker, world_size, args, folder, timeout) -> None:
    """What a new process does: connect, work, write down the result."""
    warnings.simplefilter("ignore")  # the parent's notebook has no place for them
    torch.set_num_threads(1)
    store = dist.FileStore(str(Path(folder, "meeting")), world_size)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=world_size, timeout=timedelta(seconds=timeout)
    )
    result = worker(rank, world_size, *args)
    half = Path(folder, f"half{rank}")
    half.write_bytes(pickle.dumps(result))
    half.replace(Path(folder, f"result{rank}"))
    dist.barrier()  # nobody leaves while another still talks to it
    dist.destroy_process_group()


def _check(worker, world_size) -> None:
    name = getattr(worker, "__qualname__", repr(worker))
    if getattr(worker, "__module__", None) in (None, "__main__") or "<" in name:
        raise ValueError(
            f"worker: expected a function of a module, got {name} of the notebook. A new process would not know it: "
            f"write it into my_workers.py beside the notebook, and `from my_workers import {name.split('.')[-1]}`."
        )
    if not isinstance(world_size, int) or world_size < 1:
        raise ValueError(f"world_size: expected 1 process or more, got {world_size!r}.")


def connect_from_environment() -> tuple[int, int, torch.device]:
    """(rank, world size, device) of a process that torchrun has started; connects it."""
    if "RANK" not in os.environ:
        raise RuntimeError(
            "Start this with torchrun, which tells each process its rank: "
            "torchrun --nproc-per-node 2 -m mha_lesson.pytorch.parallel heads"
        )
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
    else:
        device = torch.device("cpu")
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
    return dist.get_rank(), dist.get_world_size(), device
