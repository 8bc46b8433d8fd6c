"""Exercise 13.timed."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from mha_lesson.exercises.engine import Exercise, Mistake, Mistakes, Probe, Protocol
from mha_lesson.exercises.engine.compare import plain
from mha_lesson.exercises.engine.probes import usual_forms
from mha_lesson.steps.gpu import Device, timed


@dataclass
class Job:
    """Hands over a job whose time goes round: the first run takes the first number of seconds, and so on."""

    device: Device
    seconds: tuple[float, ...]

    def __call__(self) -> None:
        self.device.launch(self.seconds[self.device.runs % len(self.seconds)])


def _job(*seconds: float, repeats: int, queued: float = 0.0) -> tuple:
    device = Device(queued)
    return Job(device, seconds), device, repeats


def _to_a_tenth_of_a_millisecond(arguments: tuple, value: Any) -> np.ndarray:
    """Waiting inside the loop costs the handing over, 0.01 milliseconds: just as right.

    What is as short as the handing over stays apart from what is shorter: no time of the device's at all.
    """
    value = np.asarray(plain(value), float)
    return np.where(value > 0.0002, np.round(value, 4), np.where(value < 0.000008, np.minimum(value, 0), value))


MEAN = (
    "Warm-up and waits are right, and each run has its own time. But the mean is asked for, all runs together divided "
    "by repeats."
)


def _of_single_runs(run, device, repeats, choice):
    """Each run timed by itself, and one number made of all."""
    run()
    device.wait()
    seconds = []
    for _ in range(repeats):
        start = device.now()
        run()
        device.wait()
        seconds.append(device.now() - start)
    return choice(seconds)


mistake = Mistakes()


mistake.edit(
    "no_last_wait",
    """The runs stand between start and stop. But run() returns at once, long before the job is done: the clock stops
    while the device still works, and you measured how fast jobs are handed over. device.wait() after the loop, and
    before you start the clock, too.""",
    old="run()\n    device.wait()\n    return",
    new="run()\n    return",
)

mistake.edit(
    "no_first_wait",
    """The end is waited for, and there is a run that does not count. But it is still in the queue when the clock
    starts, and so is what others put there: device.wait() before start.""",
    old="run()\n    device.wait()\n    start",
    new="run()\n    start",
)

mistake.edit(
    "no_warm_up",
    """Both waits are there. But the first run is slower, it compiles and fetches memory: do one run, and wait, before
    the clock starts.""",
    old="    run()\n    device.wait()\n    start",
    new="    device.wait()\n    start",
)


@mistake
def only_last_wait(run, device, repeats):
    """You wait at the end, good. But the first run, which is slower, counts too, and so does what was in the queue:
    run() once, then device.wait(), then start the clock."""
    return _clocked(run, device, repeats, "runs wait")


mistake.edit(
    "total",
    """Warm-up and both waits are right. But this is the time of all runs together: divide by repeats.""",
    old=" / repeats",
    new="",
)

mistake.edit(
    "milliseconds",
    """Everything is waited for. But the result is in milliseconds, and seconds are asked for: no 1000.""",
    old="(device.now() - start)",
    new="1000 * (device.now() - start)",
)

mistake.edit(
    "backwards",
    """Everything is waited for. But a time below 0? End minus start, not start minus end.""",
    old="device.now() - start",
    new="start - device.now()",
)


@mistake
def warm_up_counted(run, device, repeats):
    """You do one run more. But its time is inside: it must be over, device.wait(), before the clock starts."""
    return _clocked(run, device, repeats, "wait clock run wait runs wait")


@mistake
def another_clock(run, device, repeats):
    """A number comes back. But the device's time is not in it, 0 seconds: it is a pretend one with a clock of its own,
    device.now() and not time.perf_counter(). Or run() was never called."""
    return 0.0


mistake.extend(
    [
        Mistake(name, MEAN, function=partial(_of_single_runs, choice=choice))
        for name, choice in (("median", np.median), ("minimum", np.min))
    ]
)


@mistake
def one_run_alone(run, device, repeats):
    """Everything is waited for, and one run is measured well. But only one: run it `repeats` times, and take the
    mean."""
    return _clocked(run, device, 1, "run wait clock run wait")


mistake.edit(
    "one_run",
    """Everything is waited for. But the loop runs once, whatever `repeats` says, and you divide by repeats.""",
    old="range(repeats)",
    new="range(1)",
)


TIMED = Exercise(
    id="13.timed",
    signature="timed(run, device, repeats)",
    solution=timed,
    probes=lambda: [
        Probe(_job(0.02, repeats=10), "a job of 0.02 s, 10 repeats"),
        Probe(_job(0.3, repeats=1), "a job of 0.3 s, 1 repeat"),
        Probe(_job(0.004, repeats=5, queued=3.0), "a job of 0.004 s, and 3 s of other work still in the queue"),
        Probe(_job(0.01, 0.02, 0.03, 0.06, repeats=8), "a job that takes 0.01, 0.02, 0.03, 0.06 s in turn, 8 repeats"),
    ],
    protocol=Protocol(judge=_to_a_tenth_of_a_millisecond),
    mistakes=mistake.all,
    forms={
        **usual_forms(timed),
        "waits after each run": lambda run, device, repeats: _clocked(
            run, device, repeats, "run wait clock runs-waiting wait"
        ),
        "more warm-up": lambda run, device, repeats: _clocked(run, device, repeats, "run run run wait clock runs wait"),
    },
    hints=(
        "run() returns at once. What does the clock say when the job is done?",
        "Before you start the clock the queue must be empty, and before you stop it again.",
        "The first run is slower. Do it before the clock starts, and wait for it.",
        "run(); device.wait(); start = device.now(); the loop; device.wait(); then (device.now() - start) / repeats",
    ),
    well_done="Warmed up, and waited for at both ends. With torch.cuda.synchronize() this is how one times a GPU.",
)  # fmt: skip


def _clocked(run: Callable, device: Device, repeats: int, what: str) -> float:
    """The mean of `repeats` after doing `what`, word by word. The clock starts at the word "clock", or first of all."""
    start = device.now()
    for word in what.split():
        if word == "clock":
            start = device.now()
        elif word == "wait":
            device.wait()
        elif word == "run":
            run()
        else:
            for _ in range(repeats):
                run()
                if word == "runs-waiting":
                    device.wait()
    return (device.now() - start) / repeats
