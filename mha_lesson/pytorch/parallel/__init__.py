"""Attention over several processes, on `torch.distributed`. One idea a file.

    launch.py    start processes from a notebook, get their results or a clear error
    traffic.py   count the bytes that a process hands over to be sent, and predict them
    heads.py     each process has some of the heads: one all-reduce forwards, one backwards
    ring.py      each process has a piece of the tokens: keys and values travel round a ring

A process is called a rank, and their number the world size, as everywhere. In a notebook:

    run(heads_demo, 2)          two processes on this machine
    run(ring_demo, 4)

In a terminal, the same on one machine, or on several (once on each, HOST is the first of them):

    python3 -m mha_lesson parallel heads
    torchrun --nproc-per-node 2 -m mha_lesson parallel heads
    torchrun --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d --rdzv-endpoint HOST:29500 \\
        -m mha_lesson parallel ring

With CUDA devices each rank takes one and they talk over NCCL; otherwise over gloo, on the CPU.
"""

from mha_lesson.pytorch.parallel.demos import dying_demo as dying_demo
from mha_lesson.pytorch.parallel.demos import heads_demo as heads_demo
from mha_lesson.pytorch.parallel.demos import ring_demo as ring_demo
from mha_lesson.pytorch.parallel.heads import HeadParallelAttention as HeadParallelAttention
from mha_lesson.pytorch.parallel.heads import parallelize as parallelize
from mha_lesson.pytorch.parallel.launch import run as run
from mha_lesson.pytorch.parallel.ring import ring_attention as ring_attention
from mha_lesson.pytorch.parallel.traffic import Traffic as Traffic
from mha_lesson.pytorch.parallel.traffic import head_parallel_bytes as head_parallel_bytes
from mha_lesson.pytorch.parallel.traffic import ring_bytes as ring_bytes
