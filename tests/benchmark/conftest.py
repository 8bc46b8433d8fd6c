"""Fixtures of the tests of the benchmark."""

import contextlib
import io
import json

import pytest

from mha_lesson import benchmark
from tests.benchmark.helpers import DRY


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    """main() finds the threads that it wants, so it stays in this process."""
    for name in benchmark.THREAD_VARIABLES:
        monkeypatch.setenv(name, "1")


@pytest.fixture(scope="module")
def dry(tmp_path_factory):
    """(exit status, what was printed, the file's content) of one dry run."""
    file = tmp_path_factory.mktemp("dry") / "record.json"
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        status = benchmark.main([*DRY, "--json", str(file)])
    assert list(file.parent.iterdir()) == [file]  # no half-written one beside it
    return status, printed.getvalue(), json.loads(file.read_text(encoding="utf-8"))
