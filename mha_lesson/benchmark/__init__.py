"""How long, and with how much memory: forms of attention side by side.

    python3 -m mha_lesson benchmark numpy
    python3 -m mha_lesson benchmark numpy --sizes 512,4096 --dtypes float32,float64 --json out.json
    python3 -m mha_lesson benchmark layers      whole layers in PyTorch, forwards, and with gradients
    python3 -m mha_lesson benchmark decode      one new token against a long cache, with shared key heads
    python3 -m mha_lesson benchmark long        windows, linear attention and tiles against exact attention
    python3 -m mha_lesson benchmark gpu         kernels on a CUDA device, in under five minutes

A time alone says little on a machine that does other things too. So all forms take turns in one
process, and what is reported is the ratio to a base form in the same round: its median, and the
quartiles as its spread. Differences below about 15 % are ties. Memory is measured for one form at
a time, each in a process of its own. Before anything is timed, every form must give the right
numbers.

For lessons:

    times = interleave({"loop": f, "blocks": g}, budget=5)    seconds of each round
    ratios(times, "loop")["blocks"].median
    peak_memory("mha_lesson.benchmark:numpy_forms", "textbook loop over heads", {"n": 2048})
    print(gpu_summary())                                      the runs that are stored in data/gpu

    harness.py     rounds, ratios, wrong answers         comparison.py   tables and JSON
    memory.py      a process of its own for each form    command.py      the command line
    numpy_forms.py, layer_forms.py, decode_forms.py, long_forms.py       what is compared
    gpu.py         the run on a device                   gpu_cases.py    is the kernel right?
    gpu_forms.py   what is timed there                   gpu_record.py   what is kept of it

NumPy and torch are loaded late, inside of functions: how many threads they use is decided when
they load, and `main` decides it first.
"""

from mha_lesson.benchmark.command import THREAD_VARIABLES, main, parser
from mha_lesson.benchmark.comparison import REFERENCE_SIZE, TOLERANCE, Comparison, compare, report, table
from mha_lesson.benchmark.decode_forms import decode_forms
from mha_lesson.benchmark.gpu_record import gpu_summary
from mha_lesson.benchmark.harness import Spread, WrongAnswer, check_answers, interleave, ratios, spread
from mha_lesson.benchmark.layer_forms import bare_layer, layer_forms
from mha_lesson.benchmark.long_forms import long_forms
from mha_lesson.benchmark.memory import Peak, measure_peak, peak_memory
from mha_lesson.benchmark.numpy_forms import einsum, numpy_forms, textbook, torch_sdpa

__all__ = [
    "REFERENCE_SIZE",
    "THREAD_VARIABLES",
    "TOLERANCE",
    "Comparison",
    "Peak",
    "Spread",
    "WrongAnswer",
    "bare_layer",
    "check_answers",
    "compare",
    "decode_forms",
    "einsum",
    "gpu_summary",
    "interleave",
    "layer_forms",
    "long_forms",
    "main",
    "measure_peak",
    "numpy_forms",
    "parser",
    "peak_memory",
    "ratios",
    "report",
    "spread",
    "table",
    "textbook",
    "torch_sdpa",
]
