"""`python3 -m mha_lesson parallel heads|ring`: the demos of lesson 13 in a terminal.

By itself it starts the processes on this machine. Under torchrun, which has started them already
and tells each its rank, it connects them instead: over several machines, and on CUDA devices.
"""

import os
import sys

import torch.distributed as dist

from mha_lesson.pytorch.parallel.demos import heads_demo, ring_demo
from mha_lesson.pytorch.parallel.launch import connect_from_environment, run

DEMOS = {"heads": heads_demo, "ring": ring_demo}
TOLERANCE = 1e-4  # float32, a few hundred terms a sum


def main(name: str, processes: int = 2) -> int:
    """The exit status: 1 if the result of any rank is not that of one process."""
    if "RANK" in os.environ:
        return under_torchrun(name)
    try:
        found = run(DEMOS[name], processes)
    except (RuntimeError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    return report(found, "cpu")


def under_torchrun(name: str) -> int:
    """Each rank is a process that runs this; the first one speaks for all."""
    try:
        rank, world, device = connect_from_environment()
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    everybody = [None] * world
    dist.all_gather_object(everybody, DEMOS[name](rank, world, device))
    code = report(everybody if rank == 0 else [], device.type) or int(not right(everybody))
    dist.destroy_process_group()
    return code


def report(found: list[dict], device: str) -> int:
    """One line a rank."""
    for rank, one in enumerate(found):
        words = [f"{key} {value}" if isinstance(value, int) else f"{key} {value:.1e}" for key, value in one.items()]
        print(f"rank {rank} of {len(found)} on {device}: {', '.join(words)}")
    return int(not right(found))


def right(found: list[dict]) -> bool:
    return all(value < TOLERANCE for one in found for key, value in one.items() if "error" in key)
