"""Records: written, read, checked, summed up."""

import json

import pytest

from mha_lesson import benchmark
from mha_lesson.benchmark import gpu_record
from mha_lesson.course.paths import ROOT
from mha_lesson.data import FOLDER, gpu_records
from tests.reference import says

pytestmark = pytest.mark.torch


@pytest.fixture
def stored(dry):
    """A record as it would be stored: the dry run, passed off as a real one."""
    record = json.loads(json.dumps(dry[2])) | {"dry_run": False, "card": "NVIDIA H200", "driver": "1.2", "cuda": "3.4"}
    return record | {"peak": {"tflops": 989, "gbytes_per_s": 4800}}


# ------------------------------------------------------------------------------ numbers


def test_peaks_are_in_the_table_by_the_full_name():
    assert gpu_record.PEAKS["NVIDIA H200"].tflops == gpu_record.PEAKS["NVIDIA H100 80GB HBM3"].tflops == 989
    assert gpu_record.PEAKS["NVIDIA A100-SXM4-80GB"].tflops == 312
    assert "NVIDIA H200 MIG 1g.18gb" not in gpu_record.PEAKS  # a part of a card has a part of its peak


# ------------------------------------------------------------------------------ records


def store(folder, record, name="run.json"):
    (folder / name).write_text(json.dumps(record), encoding="utf-8")


def test_what_is_stored_in_the_course_is_whole():
    for record in gpu_records():
        assert record["ended"] in ("finished", "wrong answers", "device error", "cut off")


def test_records_are_read_oldest_first(stored, tmp_path):
    assert gpu_records(tmp_path) == gpu_records(tmp_path / "is not there") == []
    for name, date in (("a", "2031-05-17T14:03:59"), ("b", "2030-05-17T14:03:59")):
        store(tmp_path, stored | {"date": date}, f"{name}.json")
    (tmp_path / "schema.json").write_text("not a record", encoding="utf-8")
    assert [record["date"][:4] for record in gpu_records(tmp_path)] == ["2030", "2031"]


def test_the_record_of_a_wrong_kernel_can_be_stored(stored, tmp_path):
    case = stored["correctness"][0] | {"status": "wrong", "why": "output: off by 1", "errors": {"output": None}}
    record = stored | {"ended": "wrong answers", "rows": [], "correctness": [case], "measured": None, "peak": None}
    store(tmp_path, record)
    assert gpu_records(tmp_path) == [record]
    assert "wrong: output: off by 1" in benchmark.gpu_summary([record])
    assert "ended early: wrong answers" in benchmark.gpu_summary([record])


def test_a_dry_run_is_no_record(dry, tmp_path):
    store(tmp_path, dry[2])
    with pytest.raises(ValueError, match=says("run.json", "dry_run", "measures nothing")):
        gpu_records(tmp_path)


@pytest.mark.parametrize(
    ("path", "value", "says_field"),
    [
        (["card"], 7, "field card: 7"),
        (["date"], "yesterday", "field date: 'yesterday'"),
        (["rows", 0, "tflops"], "fast", "field rows[0].tflops: 'fast'"),
        (["rows", 0, "tflops"], -1.0, "field rows[0].tflops: -1.0"),
        (["rows", 0, "seconds"], None, "field rows[0].seconds"),
        (["ended"], "well", "field ended: 'well'"),
        (["correctness", 2, "tolerance"], 0, "field correctness[2].tolerance"),
        (["surprise"], 1, "'surprise' was unexpected"),
    ],
)
def test_a_damaged_record_names_file_and_field(stored, tmp_path, path, value, says_field):
    place = stored
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    store(tmp_path, stored)
    with pytest.raises(ValueError, match=says("run.json", says_field)):
        gpu_records(tmp_path)


def test_a_file_that_is_no_record_is_named(tmp_path):
    (tmp_path / "run.json").write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match=says("run.json", "not JSON")):
        gpu_records(tmp_path)
    store(tmp_path, [])
    with pytest.raises(ValueError, match=says("run.json", "the whole file")):
        gpu_records(tmp_path)


def test_the_summary_says_when_there_is_nothing():
    assert benchmark.gpu_summary([]).startswith("No record stored yet")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"```\n{benchmark.gpu_summary()}\n```" in readme, "README.md shows another summary: paste the new one"
    assert (benchmark.gpu_summary() == benchmark.gpu_summary([])) == (gpu_records() == [])


def test_the_summary_is_a_table_with_the_fastest_first(stored):
    speeds = {"slow": (300, 100), "fast": (100, 400), "middle": (200, 200)}
    row = next(row for row in stored["rows"] if row["status"] == "timed")
    rows = [
        row | {"form": form, "n": n, "causal": True, "backward": False, "tflops": tflops, "share_of_peak": tflops / 989}
        for form, found in speeds.items()
        for n, tflops in zip((512, 1024), found, strict=True)
    ]
    hungry = row | {"form": "hungry", "n": 1024, "causal": True, "backward": False, "tflops": None}
    rows.append(hungry | {"status": "out of memory", "share_of_peak": None})
    lines = benchmark.gpu_summary([stored | {"rows": rows}]).splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("D = 16, causal, forward:"))
    assert lines[at + 1].split() == ["512", "1024"]
    assert [line.split() for line in lines[at + 2 : at + 6]] == [
        ["fast", "100", "(10%)", "400", "(40%)"],
        ["middle", "200", "(20%)", "200", "(20%)"],
        ["slow", "300", "(30%)", "100", "(10%)"],
        ["hungry", "-", "no", "memory"],
    ]
    assert "NVIDIA H200" in lines[0]
    assert "not in the table" not in "\n".join(lines)


def test_the_summary_of_several_runs_is_in_order(stored):
    records = [stored | {"date": date, "card": card} for card, date in (("B", "2031-01-01"), ("A", "2030-01-01"))]
    printed = benchmark.gpu_summary(records)
    assert printed.index("A, 2030") < printed.index("B, 2031")


def test_the_folder_says_what_belongs_there():
    readme = (FOLDER / "gpu" / "README.md").read_text(encoding="utf-8")
    assert "python3 -m mha_lesson benchmark gpu" in readme
    assert gpu_record.FOLDER == FOLDER / "gpu" == ROOT / "data" / "gpu"
