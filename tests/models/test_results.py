"""What is recorded of the sweeps."""

import json
import subprocess
import sys

import pytest

from mha_lesson import models
from mha_lesson.course.paths import ROOT
from mha_lesson.models import results
from tests.models.helpers import RECORD, ROWS
from tests.reference import says


def test_sweep_and_rows(sweeps):
    assert results.sweep("speech") == models.sweep("speech") == RECORD
    assert results.sweep_rows("speech") == models.sweep_rows("speech") == ROWS


def test_summary(sweeps):
    eight, one = results.summary("speech")
    assert [eight, one] == models.summary("speech")
    assert (eight.name, one.name) == ("8 heads", "1 head")
    assert eight.scores == (0.9, 0.7, 0.8) and one.scores == (0.5, 0.6)
    assert (eight.mean, eight.low, eight.high) == (pytest.approx(0.8), 0.7, 0.9)
    assert (eight.parameters, eight.train_seconds, eight.forward_ms) == (100, 11.0, 3.0)
    assert (one.parameters, one.train_seconds, one.forward_ms) == (70, 4.5, 1.5)
    assert eight.memory_mb == 90.0
    assert results.summary("speech", "peak")[1].scores == models.summary("speech", "peak")[1].scores == (0.2, 0.6)


def test_changing_what_comes_back_changes_nothing_for_others(sweeps):
    record = results.sweep("speech")
    record["rows"][0]["scores"]["accuracy"] = 0
    record["metric"] = "peak"
    record["rows"].pop()
    rows = results.sweep_rows("speech")
    rows[1]["scores"].clear()
    rows.reverse()
    assert results.sweep("speech") == RECORD
    assert results.summary("speech")[0].scores == (0.9, 0.7, 0.8)
    with pytest.raises(AttributeError):
        results.summary("speech")[0].name = "9 heads"


def test_an_unknown_record_names_those_there_are(sweeps):
    (sweeps / "digits.json").write_text(json.dumps(RECORD), "utf-8")
    for ask in (results.sweep, results.sweep_rows, results.summary):
        with pytest.raises(ValueError, match=says("name:", "(digits, speech)", "'speach'")):
            ask("speach")


@pytest.mark.parametrize("content", [b'{"task": ', b"", b"\xff\xfe\x00"])
def test_a_damaged_record_names_the_mend(sweeps, content):
    (sweeps / "speech.json").write_bytes(content)
    with pytest.raises(ValueError, match=says("speech.json is damaged", "git checkout -- data/sweeps/speech.json")):
        results.summary("speech")


def test_results_load_without_torch():
    code = "import sys, mha_lesson.models.results, mha_lesson.models; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60).returncode == 0
