"""The list of public reports and the tests that cite them say the same."""

import re

import pytest

from mha_lesson.course.paths import ROOT
from tests.reports import REPORTS, link, reported

REFERENCE = re.compile(r"[\w.-]+/[\w.-]+#\d+")
MARKER = re.compile(r'^ *@reported\("([^"]+)"\)$', re.MULTILINE)
TEXTS = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in (ROOT / "tests").rglob("test_*.py")
    if path.name != "test_reports.py"
}


def test_each_report_that_is_cited_is_listed_and_each_listed_one_is_cited():
    assert {name for text in TEXTS.values() for name in MARKER.findall(text)} == set(REPORTS)


@pytest.mark.parametrize("file", sorted(file for file, text in TEXTS.items() if REFERENCE.search(text)))
def test_reports_are_cited_by_the_marker_and_nowhere_else(file):
    assert REFERENCE.findall(TEXTS[file]) == MARKER.findall(TEXTS[file])


@pytest.mark.parametrize("reference", REPORTS)
def test_a_report_has_a_reference_and_one_sentence(reference):
    assert REFERENCE.fullmatch(reference)
    assert re.fullmatch(r"[^\n]{30,120}\.", REPORTS[reference])


def test_the_marker_brings_reference_and_link():
    mark = reported("pytorch/pytorch#103082").mark
    assert mark.name == "reported"
    assert mark.args == ("pytorch/pytorch#103082", "https://github.com/pytorch/pytorch/issues/103082")
    assert link("onnx/onnx#7274") == "https://github.com/onnx/onnx/issues/7274"


def test_a_report_that_is_not_listed_is_refused():
    with pytest.raises(ValueError, match=r"expected a report listed in tests/reports\.py, got 'pytorch/pytorch#1'"):
        reported("pytorch/pytorch#1")
