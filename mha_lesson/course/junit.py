"""One report in JUnit's XML for both phases of `test`. Standard library alone.

Each phase is a run of pytest and writes a report of its own; here they become one file with two suites.
"""

import xml.etree.ElementTree as ET

from mha_lesson.course.errors import CourseError

COUNTED = ("tests", "failures", "errors", "skipped")


def join(reports, file):
    """Write the reports {phase: path} to one file. A phase that left none (it crashed) counts as an error."""
    together = ET.Element("testsuites", name="mha_lesson")
    for phase, report in reports.items():
        together.extend(suites(phase, report))
    for key in COUNTED:
        together.set(key, str(sum(int(suite.get(key, 0)) for suite in together)))
    together.set("time", f"{sum(float(suite.get('time', 0)) for suite in together):.3f}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        ET.ElementTree(together).write(file, encoding="utf-8", xml_declaration=True)
    except OSError as error:
        raise CourseError(f"The report {file} could not be written: {error}.", "name another file.") from error


def suites(phase, report):
    """The suites of one report, named by their phase."""
    try:
        found = list(ET.parse(report).getroot().iter("testsuite"))
    except (OSError, ET.ParseError):
        found = [crashed(phase)]
    for suite in found:
        suite.set("name", phase)
    return found


def crashed(phase):
    suite = ET.Element("testsuite", tests="1", failures="0", errors="1", skipped="0", time="0")
    case = ET.SubElement(suite, "testcase", classname=phase, name="pytest", time="0")
    ET.SubElement(case, "error", message="pytest ended without a report: see the log")
    return suite
