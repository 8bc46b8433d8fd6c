"""What several tests of the benchmark share."""

import importlib

from mha_lesson import benchmark
from mha_lesson.benchmark import gpu, gpu_forms

TINY = ["numpy", "--heads", "2", "--d-head", "5", "--repeats", "3", "--budget", "0"]


# Of the same name as the functions that the package offers, so asked for in this way.
command, comparison, decode, layers, long, memory = (
    importlib.import_module(f"mha_lesson.benchmark.{name}")
    for name in ("command", "comparison", "decode_forms", "layer_forms", "long_forms", "memory")
)


DRY = ["gpu", "--dry-run", "--sizes", "16,32", "--widths", "16", "--repeats", "3"]


CELL = gpu_forms.Cell(n=6, d=16, causal=True, backward=False, batch=3, heads=2)


def make_run(device=None, **settings):
    """A run that has not begun."""
    options = benchmark.parser().parse_args(DRY)
    record = {"dry_run": True, "peak": None, "settings": gpu.fill_in(options) | settings}
    record |= {name: [] for name in ("correctness", "default_backend", "rows", "left_out")}
    return gpu.Run(device or gpu_forms.Cpu(), record, None)
