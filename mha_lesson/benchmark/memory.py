"""How much memory a form takes: the peak of a process of its own.

    peak = most memory held while it runs - memory held before it       the output counts

Memory is measured for one form at a time, each in a fresh process: what one has freed may still be
held by the process, and the next would seem to need less. The meter is the best that the system
has; its name stands beside the number.
"""

import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from mha_lesson import places


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
    task = json.dumps({"builder": builder, "name": name, "arguments": arguments, "warm": warm})
    code = "import sys; from mha_lesson.benchmark.memory import report_peak; report_peak(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", code, task],
        capture_output=True,
        text=True,
        # The second one: glibc gives freed arrays back at once, so none is used again unseen.
        env=places.child_environment(MALLOC_MMAP_THRESHOLD_="65536"),
    )
    if done.returncode:
        raise RuntimeError(f"{name}: the process that measures its memory failed.\n{done.stderr}")
    return Peak(**json.loads(done.stdout.splitlines()[-1]))


def report_peak(task: str):
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
