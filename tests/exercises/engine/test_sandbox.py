"""A stranger's function is run safely: it is stopped, it prints nothing, it cannot end the program."""

import contextlib
import sys
import threading
import time

import numpy as np

from mha_lesson.exercises import check
from mha_lesson.exercises.engine import sandbox
from tests.exercises.helpers import loops


def stubborn(q, k):
    while True:
        with contextlib.suppress(BaseException):
            time.sleep(0.01)


def leaves(q, k):
    sys.exit("bye")


def test_an_import_inside_an_answer_is_not_counted_and_not_cut_in_half(monkeypatch, tmp_path):
    monkeypatch.setattr(sandbox, "SECONDS", 1.0)
    (tmp_path / "slow_to_import.py").write_text("import time\ntime.sleep(1.6)\nfactor = 2\n")
    monkeypatch.syspath_prepend(tmp_path)

    def double(x):
        import slow_to_import

        return x * slow_to_import.factor

    assert check("00.double", double).status == "correct"


def test_an_endless_loop_is_stopped(monkeypatch):
    monkeypatch.setattr(sandbox, "SECONDS", 0.3)
    before = threading.active_count()
    result = check("03.scores", loops)
    assert result.mistake == "endless" and "Look for a loop" in result.message
    time.sleep(0.2)
    assert threading.active_count() == before


def test_a_loop_that_cannot_be_stopped_is_left_behind_and_prints_still_work(monkeypatch, capsys):
    monkeypatch.setattr(sandbox, "SECONDS", 0.2)
    assert check("03.scores", stubborn).mistake == "endless"
    print("still here")
    assert capsys.readouterr().out == "still here\n"


def test_sys_exit_does_not_close_the_kernel():
    assert check("03.scores", leaves).mistake == "raises"


def test_warnings_and_prints_of_an_answer_stay_out_of_the_notebook(capsys):
    import warnings

    def noisy(q, k):
        warnings.warn("look at me", stacklevel=1)
        print("and at me")
        return np.log(-np.ones((3, 5, 7)))

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check("03.scores", noisy)
    assert not caught and capsys.readouterr() == ("", "")
