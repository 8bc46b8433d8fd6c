"""What is kept of a run on a device: a JSON file, and how it is read again.

    card, driver, versions       what was measured on
    correctness                  one entry a case of `gpu_cases.py`
    default_backend              what SDPA picked when nobody told it, and how that is known
    rows                         one entry a form, size, width, mask and pass
    left_out                     what the budget did not reach

    TFLOP/s     4·B·H·L·S·D / seconds / 10^12, half of it if causal; forward and backward: 3.5 times that
    intensity   multiplications and additions for each byte that has to be fetched or written
    roofline    the most that a card can do at an intensity: min(peak, intensity · bandwidth)

data/gpu/schema.json says which fields there are; `mha_lesson.data.gpu_records` checks them.

Sources: Williams, Waterman & Patterson 2009 (roofline); Dao 2023, section 4.1 (how to count);
the makers' data sheets (PEAKS).
"""

import datetime
import json
import os
import re
from pathlib import Path
from typing import NamedTuple

from mha_lesson import places


class Peak(NamedTuple):
    tflops: float  # bfloat16 in, float32 sums, matrices without zeros left out ("dense")
    gbytes: float  # of memory, each second


# By the name that the driver gives. Clocks and power limits differ between cards of nearly the same
# name, so a name that is not here gets no share of any peak.
PEAKS = {
    "NVIDIA H200": Peak(989, 4800),
    "NVIDIA H100 80GB HBM3": Peak(989, 3350),
    "NVIDIA H100 PCIe": Peak(756, 2000),
    "NVIDIA A100-SXM4-80GB": Peak(312, 2039),
    "NVIDIA A100 80GB PCIe": Peak(312, 1935),
    "NVIDIA A100-SXM4-40GB": Peak(312, 1555),
    "NVIDIA A100-PCIE-40GB": Peak(312, 1555),
    "NVIDIA L40S": Peak(362, 864),
    "NVIDIA L4": Peak(121, 300),
    "NVIDIA A10": Peak(125, 600),
    "NVIDIA GeForce RTX 4090": Peak(165, 1008),
    "NVIDIA GeForce RTX 3090": Peak(71, 936),
}
NOTHING_STORED = "No record stored yet. On a machine with a CUDA device: python3 -m mha_lesson benchmark gpu"
FOLDER = places.folder("data") / "gpu"


def default_file(card: str, date: str) -> Path:
    """data/gpu/<card>-<date>.json; in the folder that you are in if that is pip's, or cannot be written."""
    name = re.sub(r"[^a-z0-9]+", "-", f"{card} {date[:16]}".lower()).strip("-")
    ours = FOLDER.is_dir() and os.access(FOLDER, os.W_OK) and not places.installed()
    folder = FOLDER if ours else Path.cwd()
    return folder / f"{name}.json"


def now() -> str:
    """As 2031-05-17T14:03:59."""
    return datetime.datetime.now().isoformat(timespec="seconds")


def write(record: dict, file: Path) -> None:
    """In one go: who stops the run in the middle of it still has the last whole file."""
    part = file.with_name(file.name + ".part")
    part.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    part.replace(file)


# ------------------------------------------------------------------------------ tables of text


def gpu_summary(records: list[dict] | None = None) -> str:
    """The recorded runs as text: TFLOP/s of each form at each N, the fastest first. None: those in data/gpu."""
    if records is None:
        from mha_lesson.data import gpu_records  # here, because it loads NumPy

        records = gpu_records()
    return "\n\n".join(_run(record) for record in sorted(records, key=lambda r: r["date"])) or NOTHING_STORED


def _run(record):
    right = [case["status"] == "right" for case in record["correctness"]]
    lines = [
        f"{record['card']}, {record['date'][:10]}: torch {record['torch']}, Triton {record['triton']}, "
        f"CUDA {record['cuda']}, driver {record['driver']}; {record['settings']['dtype']}",
        f"flash_attention: {sum(right)} of {len(right)} cases right",
    ]
    lines += [f"  {c['case']}: {c['status']}: {c['why']}" for c in record["correctness"] if c["status"] != "right"]
    lines += [
        f"SDPA by itself, D = {found['d']}, {_mask(found)}: {found['backend']}" for found in record["default_backend"]
    ]
    if record["peak"] is None:
        lines.append("The peak of this card is not in the table: no shares of it.")
    if record["ended"] != "finished":
        lines.append(f"This run ended early: {record['ended']}.")
    blocks = sorted({(row["d"], not row["causal"], row["backward"]) for row in record["rows"]})
    for d, full, backward in blocks:
        rows = [r for r in record["rows"] if (r["d"], not r["causal"], r["backward"]) == (d, full, backward)]
        lines += ["", *_block(rows)]
    if record["left_out"]:
        lines += ["", f"Left out: {len(record['left_out'])} measurements, the budget did not reach them."]
    return "\n".join(lines)


def _block(rows):
    """Forms down, N across."""
    sizes = sorted({row["n"] for row in rows})
    cells = {(row["form"], row["n"]): row for row in rows}
    forms = sorted({row["form"] for row in rows}, key=lambda form: _rank(cells, form, sizes))
    first = rows[0]
    passes = "forward and backward" if first["backward"] else "forward"
    head = f"D = {first['d']}, {_mask(first)}, {passes}: TFLOP/s (share of the peak) at N ="
    lines = [head, " " * 30 + "".join(f"{n:>14}" for n in sizes)]
    lines += [f"  {form:<28}" + "".join(f"{_cell(cells.get((form, n))):>14}" for n in sizes) for form in forms]
    return lines


def _rank(cells, form, sizes):
    """The fastest at the largest N first; what was not measured there comes last."""
    speeds = [cells[form, n]["tflops"] if (form, n) in cells else None for n in reversed(sizes)]
    return [-(speed or 0) for speed in speeds], form


def _cell(row):
    if row is None:
        return "-"
    if row["status"] != "timed":
        return {"out of memory": "no memory"}.get(row["status"], row["status"])
    share = "" if row["share_of_peak"] is None else f" ({row['share_of_peak']:.0%})"
    return f"{row['tflops']:.0f}{share}" if row["tflops"] >= 10 else f"{row['tflops']:.2g}{share}"


def _mask(row):
    return "causal" if row["causal"] else "no mask"
