"""The command `gpu`: one run on a CUDA device, in under five minutes, kept as a JSON file.

    1  is our kernel right?          gpu_cases.py; if not, nothing is timed, and the file says which case
    2  which backend does SDPA pick?
    3  times, from small N to large  gpu_forms.py; forms take turns, their answers are compared first
    4  FlexAttention, which compiles for long, beside SDPA, with the time that is left

Nothing stops the run half-way: a form without enough memory or that does not compile is written
down as such, and the others go on. When the budget nears its end, the largest sizes are left out, and
that is written down too. The file is written after every step, so a run that is cut off keeps what it has.

With --dry-run the same path runs on any machine: tiny sizes, the CPU, its own clock, and the
stand-in for Triton. Its numbers mean nothing, and its file is not taken for a record.
"""

import importlib.metadata
import importlib.util
import itertools
import shutil
import subprocess
import sys
import time
import warnings
from dataclasses import asdict
from pathlib import Path

from mha_lesson.benchmark.gpu_cases import cases, check_case, first_line, relative_error, tolerance
from mha_lesson.benchmark.gpu_forms import (
    BASE,
    FLEX,
    Cell,
    Cpu,
    Cuda,
    default_backend,
    fast_forms,
    flex_form,
    inputs,
    one_pass,
)
from mha_lesson.benchmark.gpu_record import PEAKS, default_file, gpu_summary, now, write
from mha_lesson.benchmark.harness import interleave, ratios, spread

SETTINGS = {  # what the options leave open: on a device, and in a dry run
    "sizes": ([512, 1024, 2048, 4096, 8192, 16384], [16, 32]),
    "widths": ([64, 128], [16, 32]),
    "flex_sizes": ([4096, 16384], [16]),
    "tokens": (16384, 32),
    "features": (2048, 32),
}
CASES_SHARE, FAST_SHARE = 0.4, 0.8  # of the budget: when the cases, and when all but FlexAttention, have to be done
CELL_SECONDS = 0.8  # rounds of one cell; three run in any case
CEILING = 8192  # rows and columns of the matrices that show what the card can do


class DeviceLost(Exception):
    """The device answers nothing any more; what was measured before holds."""


def run_gpu(options) -> int:
    settings = fill_in(options)
    lacking = None if options.dry_run else missing()
    if lacking:
        print(f"gpu: {lacking}. {would_have_run(settings)}", file=sys.stderr)
        return 1
    device = Cpu() if options.dry_run else Cuda()
    record = {"schema": 1, "dry_run": options.dry_run, **machine(device), "settings": settings}
    record |= {"measured": None, "ended": "cut off"}
    record |= {name: [] for name in ("correctness", "default_backend", "rows", "left_out")}
    file = None if options.dry_run else default_file(record["card"], record["date"])
    run = Run(device, record, Path(options.json) if options.json else file)
    try:
        run.save()
    except OSError as problem:  # now, and not after four minutes
        print(f"gpu: cannot write {run.file}: {problem.strerror}. Name another with --json FILE", file=sys.stderr)
        return 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # why a form cannot run is asked for where it is tried
        record["ended"] = run.all()
    run.save()
    print("\n" + gpu_summary([record]))
    if options.dry_run:
        print("\nA dry run: none of these numbers is a measurement.")
    if run.file:
        print(f"\nWritten to {run.file}")
    return int(record["ended"] != "finished")


def fill_in(options) -> dict:
    """The settings of the run, as they stand in its file."""
    given = {name: getattr(options, name) for name in SETTINGS}
    chosen = {name: SETTINGS[name][options.dry_run] if value is None else value for name, value in given.items()}
    return chosen | {"dtype": "bfloat16", "budget": options.budget, "repeats": options.repeats}


def missing() -> str | None:
    """What this machine lacks, in a few words; None if it has all."""
    if importlib.util.find_spec("torch") is None:
        return "needs PyTorch with CUDA, and this Python has no torch"
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an old driver, said below in our words
        if not torch.cuda.is_available():
            return f"needs a CUDA device, and torch {torch.__version__} finds none"
    if importlib.util.find_spec("triton") is None:
        return "needs Triton, and this Python has none (pip install triton, on Linux)"
    return None


def would_have_run(settings) -> str:
    return (
        f"It would have checked flash_attention in {len(cases(settings['widths']))} cases and timed it beside torch's "
        f"own at N = {', '.join(map(str, settings['sizes']))}, D = {', '.join(map(str, settings['widths']))}, in about "
        f"{settings['budget']:.0f} s. To see its path without a device: --dry-run"
    )


def machine(device) -> dict:
    """What the numbers may depend on."""
    import torch

    card = device.facts.name if device.facts else "no card"
    peak = PEAKS.get(card)
    has_triton = importlib.util.find_spec("triton") is not None
    return {
        "card": card,
        "date": now(),
        "driver": driver() if device.facts else None,
        "torch": torch.__version__,
        "triton": importlib.metadata.version("triton") if has_triton else None,
        "cuda": torch.version.cuda,
        "python": sys.version.split()[0],
        "memory_bytes": device.facts.total_memory if device.facts else None,
        "peak": peak and {"tflops": peak.tflops, "gbytes_per_s": peak.gbytes},
    }


def driver() -> str | None:
    """The version of the driver, if its own tool is there to say it."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    asked = [tool, "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(asked, capture_output=True, text=True, timeout=20).stdout.split()
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer[0] if answer else None


# ------------------------------------------------------------------------------ the run


class Run:
    """The four steps. Each adds to `record`, and the file is written again."""

    def __init__(self, device, record: dict, file: Path | None):
        self.device, self.record, self.file = device, record, file
        self.settings = record["settings"]
        self.begin = time.perf_counter()
        self.taken = {}  # (D, causal, backward) -> N and seconds of the last cell

    def left(self, share: float = 1.0) -> float:
        """Seconds until this share of the budget is used up."""
        return share * self.settings["budget"] - (time.perf_counter() - self.begin)

    def save(self) -> None:
        if self.file is not None:
            write(self.record, self.file)

    def all(self) -> str:
        """How it ended: "finished", "wrong answers" or "device error"."""
        try:
            self.check()
            bad = [case for case in self.record["correctness"] if case["status"] in ("wrong", "failed")]
            if bad:
                print(f"Stopped, nothing was timed: {bad[0]['case']}: {bad[0]['why']}", file=sys.stderr)
                return "wrong answers"
            self.ask()
            for cell in self.cells(self.settings["sizes"]):
                self.measure(cell, fast_forms, FAST_SHARE)
            self.taken.clear()
            for cell in self.cells(self.settings["flex_sizes"]):
                self.measure(cell, self.flex_beside_base, 1.0)
        except DeviceLost as lost:
            print(f"Stopped: {lost}", file=sys.stderr)
            self.leave_out("all that was still to come", str(lost))
            return "device error"
        return "finished"

    def cells(self, sizes) -> list[Cell]:
        """From small N to large, so that the largest are left out first."""
        tokens, features = self.settings["tokens"], self.settings["features"]
        return [
            Cell(n, d, causal, backward, max(tokens // n, 1), max(features // d, 1))
            for n, d, causal, backward in itertools.product(
                sorted(sizes), self.settings["widths"], (True, False), (False, True)
            )
        ]

    def leave_out(self, what: str, why: str) -> None:
        self.record["left_out"].append({"what": what, "why": why})

    # ---------------------------------------------------------------- 1: is it right?

    def check(self) -> None:
        from mha_lesson.pytorch.cores.flash_triton import flash_attention

        for case in cases(self.settings["widths"], tiny=self.record["dry_run"]):
            if self.left(CASES_SHARE) < 0:
                self.leave_out(f"the case {case}", f"the cases before it took {CASES_SHARE:.0%} of the budget")
                continue
            self.record["correctness"].append(check_case(case, flash_attention, self.device.name))
            self.still_there(str(case))
        self.say(f"{len(self.record['correctness'])} cases checked")

    # ---------------------------------------------------------------- 2: what is picked, what is possible?

    def ask(self) -> None:
        n = min(self.settings["sizes"])
        for cell in self.cells([n]):
            if not cell.backward:
                try:
                    found = default_backend(cell, self.device, self.settings["dtype"])
                except Exception as problem:  # a profiler that does not work is no reason to stop
                    self.leave_out(f"the default backend, {cell}", first_line(problem))
                    self.still_there(f"asking for the default backend, {cell}")
                    continue
                self.record["default_backend"].append(found)
        self.record["measured"] = ceilings(self.device, self.settings["dtype"])
        self.say("default backends asked")

    # ---------------------------------------------------------------- 3 and 4: times

    def flex_beside_base(self, cell):
        return {BASE: fast_forms(cell)[BASE], FLEX: flex_form(cell, self.device)}

    def measure(self, cell: Cell, forms_of, share: float) -> None:
        """One cell, if the budget allows: it should take as long as one like it, and longer as N grows."""
        kind = (cell.d, cell.causal, cell.backward)
        like_it = [self.taken[kind]] if kind in self.taken else self.taken.values()
        needed = max((seconds * cell.n / n for n, seconds in like_it), default=0.0)
        flex = forms_of is not fast_forms
        what = f"{FLEX if flex else 'all forms'}, {cell}"
        if self.left(share) < needed or self.left(share) <= 0:
            return self.leave_out(what, f"the budget of {self.settings['budget']:g} s; it needs about {needed:.1f} s")
        begin, rows = time.perf_counter(), []
        try:
            rows = self.rows(cell, forms_of(cell))
        except DeviceLost:
            raise
        except Exception as problem:  # not of one form, which `attempt` writes down: of the inputs, say
            self.leave_out(what, first_line(problem))
            self.still_there(what)
        self.record["rows"] += [row for row in rows if not (flex and row["form"] == BASE)]
        self.taken[kind] = cell.n, time.perf_counter() - begin
        self.device.tidy()
        self.say(str(cell))

    def rows(self, cell: Cell, forms: dict) -> list[dict]:
        """Try each form once, compare its answer, then time those that are right in turns."""
        sets = inputs(cell, self.device, self.settings["dtype"])
        rows = {name: self.attempt(cell, name, attend, sets) for name, attend in forms.items()}
        self.compare(rows)
        right = [name for name, row in rows.items() if row["status"] == "timed"]
        turns = {name: one_pass(forms[name], sets, cell.backward) for name in right}
        try:
            times = interleave(turns, self.settings["repeats"], CELL_SECONDS, 3, self.device.seconds)
        except Exception as problem:  # each ran alone; which one it was in turns, nobody knows
            for name in right:
                rows[name] |= {"status": "failed", "why": f"while they took turns: {first_line(problem)}"}
            self.still_there(f"{cell}, in turns")
            return list(rows.values())
        beside = ratios(times, BASE) if BASE in times else {}
        for name, taken in times.items():
            rows[name] |= self.figures(cell, name, spread(taken))
            rows[name]["rounds"] = len(taken)
            rows[name]["ratio"] = asdict(beside[name]) if name in beside else None
        return list(rows.values())

    def attempt(self, cell, name, attend, sets) -> dict:
        """A row with the answer of one run, or with what went wrong."""
        import torch

        row = {"form": name, **cell.facts(), "status": "timed", "why": None, "error": None, "peak_bytes": None}
        row |= dict.fromkeys(("seconds", "tflops", "share_of_peak", "share_of_roofline", "ratio", "rounds"))
        row["intensity"] = cell.flops() / cell.bytes(name)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                run = one_pass(attend, sets[:1], cell.backward)
                row["answer"], row["peak_bytes"] = self.device.peak_bytes(run)
            except torch.OutOfMemoryError as problem:
                row |= {"status": "out of memory", "why": first_line(problem)}
            except Exception as problem:  # a compiler's, or that there is no such kernel for these inputs
                reasons = [str(warning.message).splitlines()[0] for warning in said]
                row |= {"status": "failed", "why": "; ".join([first_line(problem), *reasons])[:600]}
        if row["status"] != "timed":
            self.device.tidy()
            self.still_there(f"{name}, {cell}")
        return row

    def compare(self, rows: dict[str, dict]) -> None:
        """A form whose answer is not the others' is written down as wrong, and not timed."""
        answers = {name: row.pop("answer") for name, row in rows.items() if "answer" in row}
        if not answers:
            return
        expected = next(iter(answers.values()))  # the default's, if it ran
        allowed = 4 * tolerance(self.settings["dtype"])  # both sides are rounded, and these are gradients
        for name, answer in answers.items():
            error = max(relative_error(mine, right) for mine, right in zip(answer, expected, strict=True))
            rows[name]["error"] = error if error < float("inf") else None
            if not error <= allowed:
                why = f"its answer is off by {error:.2g} of the largest number, allowed is {allowed:.2g}"
                rows[name] |= {"status": "wrong", "why": why}

    def figures(self, cell, name, seconds) -> dict:
        """What the time means."""
        tflops = cell.flops() / seconds.median / 1e12
        peak, intensity = self.record["peak"], cell.flops() / cell.bytes(name)
        roof = peak and min(peak["tflops"], intensity * peak["gbytes_per_s"] / 1e3)
        return {
            "seconds": asdict(seconds),
            "tflops": tflops,
            "share_of_peak": peak and tflops / peak["tflops"],
            "share_of_roofline": roof and tflops / roof,
        }

    # ---------------------------------------------------------------- on the way

    def still_there(self, after: str) -> None:
        """DeviceLost if a kernel has left the device in a state that no later call survives."""
        try:
            self.device.wait()
        except Exception as problem:
            raise DeviceLost(f"the device does not answer after {after}: {first_line(problem)}") from None

    def say(self, what: str) -> None:
        self.save()
        print(f"{time.perf_counter() - self.begin:6.1f} s  {what}", flush=True)


def ceilings(device, dtype: str) -> dict:
    """What this card does at its best: a product of large matrices, and a copy. Roofs that were measured."""
    import torch

    size = CEILING if device.name == "cuda" else 64
    a, b = (torch.randn(size, size, device=device.name, dtype=getattr(torch, dtype)) for _ in range(2))
    source = torch.ones(8 * size * size, device=device.name, dtype=getattr(torch, dtype))
    target = torch.empty_like(source)
    times = interleave({"product": lambda: a @ b, "copy": lambda: target.copy_(source)}, 9, 2.0, 3, device.seconds)
    product, copy = (spread(times[name]).median for name in ("product", "copy"))
    moved = 2 * source.numel() * source.element_size()  # read and written
    return {"matmul_tflops": 2 * size**3 / product / 1e12, "copy_gbytes_per_s": moved / copy / 1e9}
