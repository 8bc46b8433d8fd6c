"""Two reports become one."""

import xml.etree.ElementTree as ET

import pytest

from mha_lesson.course import junit
from mha_lesson.course.errors import CourseError
from tests.course.helpers import posix

REPORT = """<?xml version="1.0"?><testsuites name="pytest tests"><testsuite name="pytest" tests="{tests}"
 failures="{failures}" errors="0" skipped="1" time="1.5"><testcase name="{name}"/></testsuite></testsuites>"""


@pytest.fixture
def reports(tmp_path):
    (tmp_path / "a.xml").write_text(REPORT.format(tests=5, failures=2, name="test_é"), encoding="utf-8")
    (tmp_path / "b.xml").write_text(REPORT.format(tests=7, failures=0, name="cell-6"), encoding="utf-8")
    return {"tests": tmp_path / "a.xml", "notebooks": tmp_path / "b.xml"}


def test_both_phases_are_in_one_report(reports, tmp_path):
    junit.join(reports, tmp_path / "new folder" / "out.xml")
    root = ET.parse(tmp_path / "new folder" / "out.xml").getroot()
    assert [root.get(key) for key in ("tests", "failures", "errors", "skipped", "time")] == [
        "12",
        "2",
        "0",
        "2",
        "3.000",
    ]
    assert [(suite.get("name"), suite[0].get("name")) for suite in root] == [
        ("tests", "test_é"),
        ("notebooks", "cell-6"),
    ]


@pytest.mark.parametrize("left", [None, "<testsuites><cut off"])
def test_a_phase_without_a_report_is_an_error(reports, tmp_path, left):
    reports["tests"].unlink() if left is None else reports["tests"].write_text(left)
    junit.join(reports, tmp_path / "out.xml")
    root = ET.parse(tmp_path / "out.xml").getroot()
    assert root.get("errors") == "1" and root.get("tests") == "8"
    assert "without a report" in root.find("testsuite[@name='tests']/testcase/error").get("message")


@posix
def test_a_report_that_cannot_be_written_is_said(reports, tmp_path):
    with pytest.raises(CourseError, match="could not be written"):
        junit.join(reports, tmp_path / "a.xml" / "out.xml")
