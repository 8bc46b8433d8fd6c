"""The command line, `python3 -m mha_lesson benchmark`: options, and how many threads."""

import argparse
import os
import subprocess
import sys

from mha_lesson import places
from mha_lesson.benchmark.comparison import TOLERANCE
from mha_lesson.benchmark.decode_forms import run_decode
from mha_lesson.benchmark.gpu import run_gpu
from mha_lesson.benchmark.layer_forms import run_layers
from mha_lesson.benchmark.long_forms import run_long
from mha_lesson.benchmark.numpy_forms import run_numpy

# NumPy and torch read these when they load, so this package loads them late.
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
AGAIN = "import sys; from mha_lesson.benchmark import main; sys.exit(main())"

EXAMPLES = f"""examples:
  {places.COMMAND} benchmark numpy
  {places.COMMAND} benchmark numpy --sizes 512,4096 --dtypes float32,float64 --json out.json
  {places.COMMAND} benchmark layers --sizes 128,512 --budget 5
  {places.COMMAND} benchmark gpu --dry-run      (without --dry-run it needs a CUDA device)
  {places.COMMAND} benchmark layers --help      (the options of one of them)
"""


def _list_of(kind):
    def read(text):
        return [kind(item) for item in text.split(",")]

    read.__name__ = f"list of {kind.__name__}"  # argparse names it in its error
    return read


def _dtype(text):
    if text not in TOLERANCE:
        raise argparse.ArgumentTypeError(f"{text}: expected {' or '.join(TOLERANCE)}")
    return text


def _common_options(sizes: list[int], heads: int) -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    add = common.add_argument
    add("--sizes", type=_list_of(int), default=sizes, help="N, as 128,512")
    add("--dtypes", type=_list_of(_dtype), default=["float32"], help="float32, float64 or both")
    add("--heads", type=int, default=heads)
    add("--d-head", type=int, default=64)
    add("--threads", type=int, default=1, help="for NumPy and torch alike")
    add("--repeats", type=int, default=50, help="rounds at most")
    add("--budget", type=float, default=20.0, help="seconds for each size; three rounds run in any case")
    add("--memory", type=float, default=4.0, help="GB; forms whose N×N arrays need more are left out")
    add("--no-weigh", dest="weigh", action="store_false", help="do not measure memory")
    add("--json", metavar="FILE")
    return common


def _gpu_options() -> argparse.ArgumentParser:
    """All that is left open depends on whether it is a dry run: `gpu.SETTINGS`."""
    own = argparse.ArgumentParser(add_help=False)
    add = own.add_argument
    add("--sizes", type=_list_of(int), help="N, as 512,4096")
    add("--widths", type=_list_of(int), help="D, widths of a head, as 64,128")
    add("--flex-sizes", type=_list_of(int), help="N for FlexAttention, which compiles for long")
    add("--tokens", type=int, help="batch times N")
    add("--features", type=int, help="heads times D")
    add("--repeats", type=int, default=20, help="rounds at most")
    add("--budget", type=float, default=240.0, help="seconds for all of it; the largest sizes are left out first")
    add("--json", metavar="FILE", help="where the record goes; data/gpu/<card>-<date>.json if not given")
    add("--dry-run", action="store_true", help="the same path in tiny sizes on any machine, without a device")
    return own


def parser() -> argparse.ArgumentParser:
    """A new command: a function of the options, and a line or two here."""
    top = argparse.ArgumentParser(
        f"{places.COMMAND} benchmark",
        description="Forms of attention side by side.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(required=True, metavar="command")

    def add(name, run, text, options, **defaults):
        commands.add_parser(name, parents=[options], help=text, description=text).set_defaults(run=run, **defaults)

    sizes = [128, 512, 1024, 2048, 4096, 16384]
    add("numpy", run_numpy, "forms of attention in NumPy, and torch's", _common_options(sizes, heads=8))
    sizes = [128, 512, 2048]
    add("layers", run_layers, "whole layers in PyTorch, with gradients too", _common_options(sizes, heads=12))
    common = _common_options([1024, 8192], heads=32)
    add("decode", run_decode, "one new token against a long cache, with shared key heads", common, weigh=False)
    common = _common_options([512, 1024, 2048, 4096, 8192], heads=8)
    add("long", run_long, "windows, linear attention and tiles against exact attention", common)
    add("gpu", run_gpu, "kernels on a CUDA device: right, how fast, and who ran", _gpu_options())
    return top


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    options = parser().parse_args(argv)
    if not hasattr(options, "threads"):  # `gpu`: the device does the work
        return options.run(options)
    threads = dict.fromkeys(THREAD_VARIABLES, str(options.threads))
    if "numpy" in sys.modules and any(os.environ.get(name) != value for name, value in threads.items()):
        # Too late for this process: the libraries read their settings when they load.
        command = [sys.executable, "-c", AGAIN, *argv]
        return subprocess.run(command, env=places.child_environment(**threads)).returncode
    os.environ.update(threads)
    return options.run(options)
