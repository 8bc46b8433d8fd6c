"""What comparing the variants of each task gave: recorded, so that a lesson can show it at once.

    rows = sweep_rows("speech")
    rows[0]["variant_name"], rows[0]["seed"], rows[0]["scores"]["accuracy"], rows[0]["cpu_seconds"]
    for row in summary("speech"): print(row.name, row.mean, row.low, row.high)

`python3 -m mha_lesson train sweep speech` measures anew. Needs no PyTorch.
"""

# Quoted word for word by tests/faults/faults.py: change both together.

import copy
import json
from dataclasses import dataclass
from functools import cache

import numpy as np

from mha_lesson.data import FOLDER

SWEEPS = FOLDER / "sweeps"


@cache
def _read(name: str) -> dict:
    path = SWEEPS / f"{name}.json"
    try:
        return json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        known = ", ".join(sorted(p.stem for p in SWEEPS.glob("*.json"))) or "none"
        raise ValueError(f"name: expected a task with a recorded comparison ({known}), got {name!r}.") from None
    except ValueError as error:
        mend = f"Get it back with `git checkout -- data/sweeps/{path.name}`."
        raise ValueError(f"{path.name} is damaged ({error}). {mend}") from None


def sweep(name: str) -> dict:
    """The record whole: task, title, metric, higher_is_better, command, rows."""
    return copy.deepcopy(_read(name))  # nobody changes what others read


def sweep_rows(name: str) -> list[dict]:
    """One entry for each training run: variant_name, seed, scores, parameters, cpu_seconds, forward_ms..."""
    return sweep(name)["rows"]


@dataclass(frozen=True)
class Row:
    """One variant over its seeds."""

    name: str
    scores: tuple[float, ...]  # the main score of each seed
    parameters: int
    train_seconds: float  # CPU time of one training run, the median
    forward_ms: float  # CPU time for the forward pass of one batch, the median
    memory_mb: float  # how much training grew the process at its peak, the median; nan if not measured

    @property
    def mean(self) -> float:
        return float(np.mean(self.scores))

    @property
    def low(self) -> float:
        return min(self.scores)

    @property
    def high(self) -> float:
        return max(self.scores)


def summary(name: str, metric: str | None = None) -> list[Row]:
    """The variants in the order of the record, each over its seeds. metric: default the main score."""
    record = _read(name)
    metric = metric or record["metric"]
    variants: dict[str, list[dict]] = {}
    for row in record["rows"]:
        variants.setdefault(row["variant_name"], []).append(row)
    return [
        Row(
            variant,
            tuple(row["scores"][metric] for row in rows),
            rows[0]["parameters"],
            float(np.median([row["cpu_seconds"] for row in rows])),
            float(np.median([row["forward_ms"] for row in rows])),
            float(np.median([np.nan if row.get("peak_mb") is None else row["peak_mb"] for row in rows])),
        )
        for variant, rows in variants.items()
    ]
