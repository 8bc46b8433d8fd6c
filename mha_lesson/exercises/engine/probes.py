"""Numbers to try functions on, the same on every machine, and wrappers for unusual right answers."""

from collections.abc import Callable

import numpy as np

from mha_lesson.exercises.engine import Probe


def wave(*shape: int, step: float = 0.7, start: float = 0.3, size: float = 1.0, dtype=np.float64):
    """Numbers without symmetry: size * sin(step * k + start), k = 0, 1, 2, ... in C order."""
    k = np.arange(int(np.prod(shape)))
    return (size * np.sin(step * k + start)).reshape(shape).astype(dtype)


def given_versions(versions: dict[str, Callable], given: Callable) -> list[Probe]:
    """Probes for a test that the learner writes: each hands it one version of a function, as `given` makes it."""
    return [Probe((given(f),), f"given {note}") for note, f in versions.items()]


def in_lists(function: Callable) -> Callable:
    """The same answer as nested Python lists."""

    def answer(*args):
        result = function(*args)
        if isinstance(result, tuple):
            return tuple(np.asarray(r).tolist() for r in result)
        return np.asarray(result).tolist()

    return answer


def in_torch(function: Callable) -> Callable:
    """The same answer as torch tensors. torch is imported only when the answer is used."""

    def answer(*args):
        import torch

        result = function(*args)
        if isinstance(result, tuple):
            return tuple(torch.as_tensor(np.array(r)) for r in result)
        return torch.as_tensor(np.array(result))

    return answer


def usual_forms(function: Callable) -> dict[str, Callable]:
    return {"nested lists": in_lists(function), "torch tensors": in_torch(function)}
