"""torchrun --nproc-per-node 2 -m mha_lesson.pytorch.parallel heads|ring"""

import sys

import torch.distributed as dist

from mha_lesson.pytorch.parallel.demos import heads_demo, ring_demo
from mha_lesson.pytorch.parallel.launch import connect_from_environment

DEMOS = {"heads": heads_demo, "ring": ring_demo}


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or arguments[0] not in DEMOS:
        print(f"expected one of {', '.join(DEMOS)}, got {' '.join(arguments) or 'nothing'}.", file=sys.stderr)
        return 2
    try:
        rank, world, device = connect_from_environment()
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    found = DEMOS[arguments[0]](rank, world, device)
    everybody = [None] * world
    dist.all_gather_object(everybody, found)
    if rank == 0:
        for r, one in enumerate(everybody):
            words = [f"{key} {value}" if isinstance(value, int) else f"{key} {value:.1e}" for key, value in one.items()]
            text = ", ".join(words)
            print(f"rank {r} of {world} on {device.type}: {text}")
    dist.destroy_process_group()
    return 0 if all(value < 1e-4 for one in everybody for key, value in one.items() if "error" in key) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
