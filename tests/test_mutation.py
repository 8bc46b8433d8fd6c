"""The list of faults is in order; `python3 -m tests.mutation` measures who notices them."""

from pathlib import Path

import pytest

from tests.mutation.faults import FAULTS

ROOT = Path(__file__).resolve().parents[1]


def test_there_are_enough_faults_with_names_of_their_own():
    assert len(FAULTS) >= 36
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    assert len({(fault.file, fault.old, fault.new) for fault in FAULTS}) == len(FAULTS)


def test_every_file_of_the_numpy_half_has_faults():
    files = {f"mha_lesson/steps/{path.name}" for path in (ROOT / "mha_lesson" / "steps").glob("*.py")}
    without_code = {"mha_lesson/steps/__init__.py", "mha_lesson/steps/typing.py"}
    assert {fault.file for fault in FAULTS} == files - without_code | {"mha_lesson/attention.py"}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_one_edit_that_compiles(fault):
    text = (ROOT / fault.file).read_text(encoding="utf-8")
    assert text.count(fault.old) == 1
    faulty = text.replace(fault.old, fault.new)
    assert faulty != text
    compile(faulty, fault.file, "exec")
