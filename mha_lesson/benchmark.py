"""How long, and with how much memory: forms of attention side by side.

    python3 -m mha_lesson.benchmark numpy
    python3 -m mha_lesson.benchmark numpy --sizes 512,4096 --dtypes float32,float64 --json out.json
    python3 -m mha_lesson.benchmark layers      whole layers in PyTorch, forwards, and with gradients

A time alone says little on a machine that does other things too. So all forms take turns in one
process, and what is reported is the ratio to a base form in the same round: its median, and the
quartiles as its spread. Differences below about 15 % are ties. Memory is measured for one form at
a time, each in a process of its own. Before anything is timed, every form must give the right
numbers.

For lessons:

    times = interleave({"loop": f, "blocks": g}, budget=5)    seconds of each round
    ratios(times, "loop")["blocks"].median
    peak_memory("mha_lesson.benchmark:numpy_forms", "textbook", {"n": 2048})
"""

import argparse
import gc
import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles

# NumPy and torch read these when they load, so this file loads them late.
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
TOLERANCE = {"float32": 1e-5, "float64": 1e-12}
REFERENCE_SIZE = 512  # up to this N every form is compared with float64 too


class WrongAnswer(Exception):
    """A form does not compute what the others do: its time would mean nothing."""


# ------------------------------------------------------------------------------ the harness


@dataclass(frozen=True)
class Spread:
    median: float
    low: float  # first quartile
    high: float  # third quartile


def spread(samples) -> Spread:
    """Median and quartiles of a list of numbers."""
    samples = list(samples)
    low, _, high = quantiles(samples, n=4, method="inclusive") if len(samples) > 1 else samples * 3
    return Spread(median(samples), low, high)


def interleave(
    alternatives: dict[str, Callable], repeats: int = 50, budget: float = 20.0, least: int = 3
) -> dict[str, list[float]]:
    """Seconds of each alternative in each round; in a round every alternative runs once.

    Rounds end after `repeats`, or once `budget` seconds are used up and `least` are done. Every
    second round runs backwards, so that no alternative always follows the same other one. One
    round before the first is not counted: it loads caches and lazy imports.
    """
    for run in alternatives.values():
        run()
    times = {name: [] for name in alternatives}
    order = list(alternatives)
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        end = time.perf_counter() + budget
        for done in range(repeats):
            if done >= least and time.perf_counter() >= end:
                break
            for name in order if done % 2 == 0 else reversed(order):
                begin = time.perf_counter()
                alternatives[name]()
                times[name].append(time.perf_counter() - begin)
    finally:
        if was_enabled:
            gc.enable()
    return times


def ratios(times: dict[str, list[float]], base: str) -> dict[str, Spread]:
    """Each alternative's time over the base's time in the same round.

    A machine that gets slower for a while slows down both: their ratio stays.
    """
    return {
        name: spread(mine / other for mine, other in zip(taken, times[base], strict=True))
        for name, taken in times.items()
    }


def check_answers(results: dict, expected, tolerance: float, what: str = "") -> dict[str, float]:
    """The largest error of each result; WrongAnswer if one is above the tolerance, or not a number."""
    import numpy as np

    errors = {}
    for name, result in results.items():
        result = np.asarray(result)
        if result.shape != expected.shape:
            raise WrongAnswer(f"{name} {what}: expected shape {expected.shape}, got {result.shape}.")
        errors[name] = float(np.max(np.abs(result - expected), initial=0))
        if not errors[name] <= tolerance:  # NaN, too
            raise WrongAnswer(f"{name} {what}: off by {errors[name]:.3g}, allowed is {tolerance:.0e}.")
    return errors


# ------------------------------------------------------------------------------ memory


@dataclass(frozen=True)
class Peak:
    bytes: int
    meter: str


def peak_memory(builder: str, name: str, arguments: dict, warm: dict | None = None) -> Peak:
    """The most memory that one alternative holds above what its inputs take, in a fresh process.

    builder: "module:function". function(**arguments) returns {name: callable}. With `warm`, for
    example {"n": 16}, the alternative runs once at that size before, so that what a library
    sets up on its first call does not count.
    """
    package = str(Path(__file__).resolve().parents[1])
    path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    task = json.dumps({"builder": builder, "name": name, "arguments": arguments, "warm": warm})
    code = "import sys; from mha_lesson.benchmark import _report_peak; _report_peak(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", code, task],
        capture_output=True,
        text=True,
        # The second one: glibc gives freed arrays back at once, so none is used again unseen.
        env={**os.environ, "PYTHONPATH": path, "MALLOC_MMAP_THRESHOLD_": "65536"},
    )
    if done.returncode:
        raise RuntimeError(f"{name}: the process that measures its memory failed.\n{done.stderr}")
    return Peak(**json.loads(done.stdout.splitlines()[-1]))


def _report_peak(task: str):
    task = json.loads(task)
    module, function = task["builder"].split(":")
    build = getattr(importlib.import_module(module), function)
    if task["warm"]:
        build(**{**task["arguments"], **task["warm"]})[task["name"]]()
    run = build(**task["arguments"])[task["name"]]
    print(json.dumps(asdict(measure_peak(run))))


def measure_peak(run: Callable) -> Peak:
    """The peak of this process while `run` runs, less what it held before."""
    for meter in (_linux_meter, _windows_meter, _rusage_meter):
        read = meter()
        if read is not None:
            before = read("now")
            result = run()  # kept until the peak is read: the output counts for every form
            peak = Peak(max(read("peak") - before, 0), f"{meter.__doc__}")
            del result
            return peak
    import tracemalloc

    tracemalloc.start()
    try:
        result = run()
        peak = tracemalloc.get_traced_memory()[1]
        del result
    finally:
        tracemalloc.stop()
    return Peak(peak, "tracemalloc: NumPy's arrays only, nothing of torch")


def _linux_meter():
    """VmHWM of a fresh process"""
    status = Path("/proc/self/status")
    fields = {"now": "VmRSS:", "peak": "VmHWM:"}

    def read(which):
        line = next(line for line in status.read_text().splitlines() if line.startswith(fields[which]))
        return int(line.split()[1]) * 1024

    try:
        Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
        read("peak")
        return read
    except (OSError, StopIteration):
        return None


def _windows_meter():
    """peak working set of a fresh process"""
    try:
        import psutil
    except ImportError:
        return None
    info = psutil.Process().memory_info()
    if not hasattr(info, "peak_wset"):
        return None
    return lambda which: psutil.Process().memory_info().peak_wset


def _rusage_meter():
    """rise of ru_maxrss in a fresh process"""
    try:
        import resource
    except ImportError:
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return lambda which: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


# ------------------------------------------------------------------------------ comparing


@dataclass(frozen=True)
class Comparison:
    """What to compare: a function (n, heads, d_head, dtype) -> {name: callable}, by its name,
    because the processes that measure memory must find it too."""

    builder: str  # "module:function"
    reference: Callable  # of the same arguments: the right answer, in float64
    bases: tuple[str, ...]  # the first one that is there is the base of all ratios
    square_bytes: Callable  # (name, n, heads, itemsize): bytes of the N×N arrays that a form holds
    variants: tuple[dict, ...] = ({},)  # further arguments of the builder; each is a block of the table

    def build(self, **arguments) -> dict[str, Callable]:
        module, function = self.builder.split(":")
        return getattr(importlib.import_module(module), function)(**arguments)


def compare(comparison: Comparison, arguments: dict, options) -> dict:
    """One size: check, time, weigh. Returns what one block of the table and the JSON file hold."""
    n, heads, dtype = arguments["n"], arguments["heads"], arguments["dtype"]
    forms, skipped = comparison.build(**arguments), {}
    for name in list(forms):
        needed = comparison.square_bytes(name, n, heads, int(dtype[-2:]) // 8)
        if needed > options.memory * 1e9:
            del forms[name]
            skipped[name] = f"its N×N arrays need about {needed / 1e9:.1f} GB, more than --memory {options.memory:g}"
    base = next(name for name in comparison.bases if name in forms)
    errors = _check(comparison, forms, base, arguments)
    times = interleave(forms, options.repeats, options.budget)
    ratio = ratios(times, base)
    rows = {}
    for name, taken in times.items():
        rows[name] = {"seconds": asdict(spread(taken)), "ratio": asdict(ratio[name]), "error": errors[name]}
        if options.weigh:
            rows[name]["peak"] = asdict(peak_memory(comparison.builder, name, arguments, {"n": 16}))
    return {**arguments, "base": base, "rounds": len(times[base]), "forms": rows, "skipped": skipped}


def _check(comparison, forms, base, arguments):
    """Each form against float64 where that is cheap, and always against the base."""
    what = f"at N={arguments['n']} in {arguments['dtype']}"
    tolerance = TOLERANCE[arguments["dtype"]]
    results = {name: run() for name, run in forms.items()}
    if arguments["n"] <= REFERENCE_SIZE:
        return check_answers(results, comparison.reference(**arguments), tolerance, what)
    import numpy as np

    return check_answers(results, np.asarray(results[base]), tolerance, what)


def table(result: dict) -> str:
    """One size as text."""
    passes = {None: "", False: "forward, ", True: "forward and backward, "}[result.get("backward")]
    head = f"N = {result['n']}, {result['dtype']}, {passes}{result['rounds']} rounds"
    width = max(30, len(head) + 1)
    lines = [f"{head:<{width}}{'ms':>10}{'ratio':>9}  {'quartiles':<16}{'extra MB':>9}{'error':>10}"]
    for name, row in result["forms"].items():
        ratio, peak = row["ratio"], row.get("peak")
        quartiles = f"{ratio['low']:.2f} to {ratio['high']:.2f}"
        extra = f"{peak['bytes'] / 1e6:.1f}" if peak else "-"
        lines.append(
            f"  {name:<{width - 2}}{row['seconds']['median'] * 1e3:>10.2f}{ratio['median']:>9.2f}  "
            f"{quartiles:<16}{extra:>9}{row['error']:>10.0e}"
        )
    lines += [f"  {name:<{width}}left out: {why}" for name, why in result["skipped"].items()]
    return "\n".join(lines) + "\n"


# ------------------------------------------------------------------------------ the command `numpy`


def _inputs(n, heads, d_head, dtype):
    import numpy as np

    draw = np.random.default_rng(n).standard_normal
    return [draw((1, heads, n, d_head), dtype=dtype) for _ in range(3)]


def numpy_forms(n: int, heads: int = 8, d_head: int = 64, dtype: str = "float32") -> dict[str, Callable]:
    """Causal attention in NumPy, in the forms that people write, and torch's if torch is there."""
    from mha_lesson.attention import blocked_attention, scaled_dot_product_attention
    from mha_lesson.steps.masks import causal_mask

    q, k, v = _inputs(n, heads, d_head, dtype)
    forms = {
        "textbook loop over heads": lambda: textbook(q, k, v),
        "einsum": lambda: einsum(q, k, v),
        "scaled_dot_product_attention": lambda: scaled_dot_product_attention(q, k, v, causal_mask(n, n))[0],
        "blocked_attention": lambda: blocked_attention(q, k, v, causal=True),
    }
    return {"torch SDPA": lambda: torch_sdpa(q, k, v)} | forms if _has_torch() else forms


def torch_sdpa(q, k, v):
    """What torch offers: one call, without the N×N array."""
    import torch  # here, so that the processes that weigh other forms do not load it

    return torch.nn.functional.scaled_dot_product_attention(*map(torch.from_numpy, (q, k, v)), is_causal=True)


def _has_torch() -> bool:
    return importlib.util.find_spec("torch") is not None


def textbook(q, k, v):
    """As in most courses: head after head, with the N×N array, a new array at each step."""
    import numpy as np

    output = np.empty_like(v)
    future = np.triu(np.ones((q.shape[2], k.shape[2]), bool), 1)
    for b, h in np.ndindex(q.shape[:2]):
        scores = q[b, h] @ k[b, h].T / q.shape[-1] ** 0.5  # (N, N)
        scores = np.where(future, -np.inf, scores)
        e = np.exp(scores - scores.max(axis=-1, keepdims=True))
        output[b, h] = e / e.sum(axis=-1, keepdims=True) @ v[b, h]
    return output


def einsum(q, k, v):
    """All heads at once, written with np.einsum."""
    import numpy as np

    scores = np.einsum("bhld,bhsd->bhls", q, k, optimize=True) / q.shape[-1] ** 0.5  # (B, H, N, N)
    scores = np.where(np.triu(np.ones(scores.shape[-2:], bool), 1), -np.inf, scores)
    e = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.einsum("bhls,bhsv->bhlv", e / e.sum(axis=-1, keepdims=True), v, optimize=True)


def numpy_reference(n, heads, d_head, dtype):
    """The textbook form on the same numbers in float64."""
    import numpy as np

    return textbook(*(x.astype(np.float64) for x in _inputs(n, heads, d_head, dtype)))


def _numpy_square_bytes(name, n, heads, itemsize):
    """The N×N arrays alive at the worst moment: four of floats, and the mask."""
    at_once = {"textbook loop over heads": 1, "einsum": heads, "scaled_dot_product_attention": heads}
    return at_once.get(name, 0) * 4 * n * n * itemsize + n * n * (name in at_once)


def run_numpy(options) -> int:
    bases = ("torch SDPA", "textbook loop over heads", "blocked_attention")
    comparison = Comparison("mha_lesson.benchmark:numpy_forms", numpy_reference, bases, _numpy_square_bytes)
    return report(comparison, "causal attention in NumPy", options)


# ------------------------------------------------------------------------------ the command `layers`


def layer_forms(n: int, heads: int, d_head: int, dtype: str, backward: bool) -> dict[str, Callable]:
    """Whole layers with the same weights on one causal sequence: the output, or the input's gradient.

    Backwards, the gradients of the weights are computed too. `nn.MultiheadAttention` stays in
    training mode, where it uses SDPA; its way for evaluation builds the N×N array.
    """
    import torch

    from mha_lesson.pytorch import MultiHeadAttention

    theirs, x, probe = _layer_inputs(n, heads, d_head, dtype)
    future = torch.ones(n, n, dtype=torch.bool).triu(1)
    ours = MultiHeadAttention.from_torch(theirs)
    bare = {"qkv": torch.nn.Linear(x.shape[-1], 3 * x.shape[-1], dtype=x.dtype), "out": theirs.out_proj}
    bare["qkv"].load_state_dict({"weight": theirs.in_proj_weight, "bias": theirs.in_proj_bias})
    calls = {
        "bare SDPA layer": (bare.values(), lambda x: bare_layer(x, bare["qkv"], bare["out"], heads)),
        "nn.MultiheadAttention": (
            [theirs],
            lambda x: theirs(x, x, x, attn_mask=future, is_causal=True, need_weights=False)[0],
        ),
        "mha_lesson.pytorch": ([ours], lambda x: ours(x, causal=True)),
    }
    return {
        name: _one_pass(call, [p for module in modules for p in module.parameters()], x, probe, backward)
        for name, (modules, call) in calls.items()
    }


def bare_layer(x, qkv, out, heads):
    """The least that a layer can do: one matrix for Q, K and V, SDPA, one matrix after it."""
    from torch.nn.functional import scaled_dot_product_attention

    q, k, v = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in qkv(x).chunk(3, dim=-1))
    return out(scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


def _layer_inputs(n, heads, d_head, dtype):
    """A layer with its weights, one sequence, and the gradient that comes back to its output."""
    import torch

    torch.manual_seed(n)
    dtype, width = getattr(torch, dtype), heads * d_head
    layer = torch.nn.MultiheadAttention(width, heads, batch_first=True, dtype=dtype)
    return layer, torch.randn(1, n, width, dtype=dtype), torch.randn(1, n, width, dtype=dtype)


def _one_pass(call, parameters, x, probe, backward):
    import torch

    def forwards():
        with torch.no_grad():
            return call(x)

    def both():
        leaf = x.detach().requires_grad_()
        return torch.autograd.grad(call(leaf), [leaf, *parameters], probe)[0]

    return both if backward else forwards


def layer_reference(n, heads, d_head, dtype, backward):
    """`nn.MultiheadAttention` in float64, asked for its weights: then it builds the N×N array."""
    import torch

    layer, x, probe = _layer_inputs(n, heads, d_head, dtype)
    layer, future = layer.double(), torch.ones(n, n, dtype=torch.bool).triu(1)

    def call(x):
        return layer(x, x, x, attn_mask=future)[0]

    return _one_pass(call, [], x.double(), probe.double(), backward)().numpy()


def run_layers(options) -> int:
    if not _has_torch():
        print("layers: needs PyTorch, and this Python has none. Install it: pip install torch", file=sys.stderr)
        return 1
    comparison = Comparison(
        "mha_lesson.benchmark:layer_forms",
        layer_reference,
        ("bare SDPA layer",),
        lambda name, n, heads, itemsize: n * n * (name == "nn.MultiheadAttention"),  # its mask
        ({"backward": False}, {"backward": True}),
    )
    return report(comparison, "causal layers in PyTorch", options)


# ------------------------------------------------------------------------------ the command line


def report(comparison: Comparison, title: str, options) -> int:
    """Compare at every size and dtype; print tables, write the JSON file. 1 if an answer is wrong."""
    machine = _machine()
    print(
        f"{title}: {options.heads} heads of width {options.d_head}, threads: {options.threads}; "
        f"Python {machine['python']}, NumPy {machine['numpy']}, torch {machine['torch'] or 'not installed'}\n"
    )
    results = []
    for dtype in options.dtypes:
        for n in options.sizes:
            for variant in comparison.variants:
                arguments = {"n": n, "heads": options.heads, "d_head": options.d_head, "dtype": dtype, **variant}
                try:
                    results.append(compare(comparison, arguments, options))
                except WrongAnswer as wrong:
                    print(f"Stopped, nothing was timed: {wrong}", file=sys.stderr)
                    return 1
                print(table(results[-1]), flush=True)
    if results:
        print(_footnote(results))
    if options.json:
        settings = {name: value for name, value in vars(options).items() if name not in ("run", "json")}
        whole = {"title": title, "settings": settings, "machine": machine, "results": results}
        Path(options.json).write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    return 0


def _footnote(results):
    meters = sorted({row["peak"]["meter"] for r in results for row in r["forms"].values() if "peak" in row})
    bases = " or ".join(sorted({r["base"] for r in results}))
    lines = [f"ratio: time over that of {bases} in the same round, median. Under 15 % apart is a tie."]
    if not _has_torch():
        lines.append("torch is not installed: the base is a form in NumPy instead of torch's SDPA.")
    lines += [f"extra MB: above the inputs, output included; measured by {meter}." for meter in meters]
    lines.append(f"error: the largest, from float64 up to N = {REFERENCE_SIZE}, from the base above.")
    return "\n".join(lines)


def _machine():
    import numpy as np

    return {
        "system": platform.system(),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": importlib.metadata.version("torch") if _has_torch() else None,
    }


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


def parser() -> argparse.ArgumentParser:
    """A new command: a function of the options, and three lines here."""
    top = argparse.ArgumentParser("python3 -m mha_lesson.benchmark", description=__doc__.splitlines()[0])
    commands = top.add_subparsers(required=True, metavar="command")
    common = _common_options(sizes=[128, 512, 1024, 2048, 4096, 16384], heads=8)
    numpy = commands.add_parser("numpy", parents=[common], help="forms of attention in NumPy, and torch's")
    numpy.set_defaults(run=run_numpy)
    common = _common_options(sizes=[128, 512, 2048], heads=12)
    layers = commands.add_parser("layers", parents=[common], help="whole layers in PyTorch, with gradients too")
    layers.set_defaults(run=run_layers)
    return top


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    options = parser().parse_args(argv)
    threads = dict.fromkeys(THREAD_VARIABLES, str(options.threads))
    if "numpy" in sys.modules and any(os.environ.get(name) != value for name, value in threads.items()):
        # Too late for this process: the libraries read their settings when they load.
        command = [sys.executable, "-m", "mha_lesson.benchmark", *argv]
        return subprocess.run(command, env={**os.environ, **threads}).returncode
    os.environ.update(threads)
    return options.run(options)


if __name__ == "__main__":
    sys.exit(main())
