"""One comparison: the forms, the right answer, a table of text and a JSON file.

For each size: every form must give the right numbers; then they take turns; then each is weighed.

    ratio = time / time of the base in the same round, median, with the quartiles as its spread
    error = the largest difference from the right answer
"""

import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from mha_lesson.benchmark.harness import WrongAnswer, check_answers, interleave, ratios, spread
from mha_lesson.benchmark.memory import peak_memory

TOLERANCE = {"float32": 1e-5, "float64": 1e-12}
REFERENCE_SIZE = 512  # up to this N every form is compared with float64 too


def has_torch() -> bool:
    return importlib.util.find_spec("torch") is not None


def needs_torch(command: str) -> bool:
    """True, with a line that says so, if the command cannot run for want of PyTorch."""
    if not has_torch():
        print(f"{command}: needs PyTorch, and this Python has none. Install it: pip install torch", file=sys.stderr)
    return not has_torch()


@dataclass(frozen=True)
class Comparison:
    """What to compare: a function (n, heads, d_head, dtype) -> {name: callable}, by its name,
    because the processes that measure memory must find it too.

    A reference that is cheap at any N, because it is made for a few queries only, says so with
    `rows`; if the forms do not all compute the same thing, it gives one answer for each name.
    """

    builder: str  # "module:function"
    reference: Callable  # of the same arguments: the right answer in float64, or {name: answer}
    bases: tuple[str, ...]  # the first one that is there is the base of all ratios
    square_bytes: Callable  # (name, n, heads, itemsize): bytes of the N×N arrays that a form holds
    variants: tuple[dict, ...] = ({},)  # further arguments of the builder; each is a block of the table
    rows: Callable | None = None  # n -> the queries that the reference gives; None: all, and small N only
    note: str = ""  # a line for below the tables

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
    """Each form against float64 where that is cheap, else against the base."""
    what = f"at N={arguments['n']} in {arguments['dtype']}"
    tolerance = TOLERANCE[arguments["dtype"]]
    import numpy as np

    results = {name: np.asarray(run()) for name, run in forms.items()}
    if comparison.rows is not None:
        rows = comparison.rows(arguments["n"])
        results = {name: result[..., rows, :] for name, result in results.items()}  # (..., len(rows), D)
    elif arguments["n"] > REFERENCE_SIZE:
        return check_answers(results, results[base], tolerance, what)
    expected = comparison.reference(**arguments)
    if not isinstance(expected, dict):
        return check_answers(results, expected, tolerance, what)
    return {n: check_answers({n: r}, expected[n], tolerance, what)[n] for n, r in results.items()}


def table(result: dict) -> str:
    """One size as text."""
    passes = {None: "", False: "forward, ", True: "forward and backward, "}[result.get("backward")]
    head = f"N = {result['n']}, {result['dtype']}, {passes}{result['rounds']} rounds"
    width = max(30, len(head) + 1, *(len(name) + 3 for name in result["forms"]))
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


def report(comparison: Comparison, title: str, options) -> int:
    """Compare at every size and dtype; print tables, write the JSON file. 1 if an answer is wrong."""
    from tqdm import tqdm

    machine = machine_facts()
    print(
        f"{title}: {options.heads} heads of width {options.d_head}, threads: {options.threads}; "
        f"Python {machine['python']}, NumPy {machine['numpy']}, torch {machine['torch'] or 'not installed'}\n"
    )
    results = []
    common = {"heads": options.heads, "d_head": options.d_head}
    blocks = [
        {"n": n, **common, "dtype": dtype, **variant}
        for dtype in options.dtypes
        for n in options.sizes
        for variant in comparison.variants
    ]
    for arguments in (bar := tqdm(blocks, unit="table", leave=False, disable=None)):  # None: on a terminal
        bar.set_description(f"N = {arguments['n']}, {arguments['dtype']}")
        try:
            results.append(compare(comparison, arguments, options))
        except WrongAnswer as wrong:
            bar.close()
            print(f"Stopped, nothing was timed: {wrong}", file=sys.stderr)
            return 1
        bar.write(table(results[-1]))
    if results:
        print(_footnote(comparison, results))
    if options.json:
        settings = {name: value for name, value in vars(options).items() if name not in ("run", "json")}
        whole = {"title": title, "settings": settings, "machine": machine, "results": results}
        Path(options.json).write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    return 0


def _footnote(comparison, results):
    meters = sorted({row["peak"]["meter"] for r in results for row in r["forms"].values() if "peak" in row})
    bases = " or ".join(sorted({r["base"] for r in results}))
    lines = [f"ratio: time over that of {bases} in the same round, median. Under 15 % apart is a tie."]
    if not has_torch():
        lines.append("torch is not installed: the base is a form in NumPy instead of torch's SDPA.")
    lines += [f"extra MB: above the inputs, output included; measured by {meter}." for meter in meters]
    above = f" up to N = {REFERENCE_SIZE}, from the base above" if comparison.rows is None else ""
    lines.append(f"error: the largest, from float64{above}.")
    return "\n".join([*lines, comparison.note] if comparison.note else lines)


def machine_facts() -> dict:
    """What a ratio may depend on."""
    import numpy as np

    return {
        "system": platform.system(),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": importlib.metadata.version("torch") if has_torch() else None,
    }
