"""The time limit, with threads and (in a browser) without."""

import contextlib
import itertools
import random
import sys
import threading

import numpy as np
import pytest

from mha_lesson.exercises import adopt, check
from mha_lesson.exercises.engine import sandbox, stopping


@pytest.fixture
def no_threads(monkeypatch):
    """As in Pyodide."""

    def start(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)


def right(q, k):
    return q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5


def no_scale(q, k):
    return q @ k.swapaxes(-1, -2)


def endless(q, k):
    for _ in itertools.count():
        with contextlib.suppress(ValueError):
            q = q + 1


def test_without_threads_a_right_answer_is_right_and_a_wrong_one_has_its_name(no_threads, capsys):
    assert check("03.scores", right).status == "correct"
    assert check("03.scores", no_scale).mistake == "no_scale"
    assert check("03.scores", lambda q, k: q.nonsense).mistake == "raises"
    assert check("03.scores", lambda q, k: print(q)).mistake == "prints"
    assert adopt("03.scores", right).__wrapped__ is right
    assert capsys.readouterr().out == "03.scores: from here on your own function is used.\n"


def test_without_threads_an_endless_loop_is_stopped_too(no_threads, monkeypatch):
    monkeypatch.setattr(sandbox, "SECONDS", 0.2)
    before = sys.gettrace()
    result = check("03.scores", endless)
    assert result.mistake == "endless" and "Look for a loop" in result.message
    assert sys.gettrace() is before, "debuggers go on"
    assert check("03.scores", right).status == "correct"


ON_ONE_LINE = ["while True: pass", "[0 for _ in iter(int, 1)]", "all(True for _ in iter(int, 1))"]


@pytest.mark.parametrize("loop", ON_ONE_LINE)
def test_without_threads_a_loop_on_a_single_line_is_stopped_too(no_threads, loop):
    cell = {}
    exec(f"def f(n):\n    {loop}", cell)
    assert [o.stopped for o in sandbox.call_all(cell["f"], [(0,)], 0.2)] == [True]


def test_without_threads_the_first_loop_ends_the_probes(no_threads, monkeypatch):
    """After it Python looks at no clock any more."""
    monkeypatch.setattr(sandbox, "SECONDS", 0.2)
    calls = []

    def f(n):
        calls.append(n)
        while n == 1:
            pass
        return n

    outcomes = sandbox.call_all(f, [(0,), (1,), (2,)], 0.2)
    assert [o.stopped for o in outcomes] == [False, True, True] and calls == [0, 1]


def test_without_threads_an_import_is_not_cut_in_half(no_threads, monkeypatch, tmp_path):
    monkeypatch.setattr(sandbox, "SECONDS", 0.3)
    (tmp_path / "slow_here.py").write_text("import time\nfor _ in range(20):\n    time.sleep(0.04)\nfactor = 2\n")
    monkeypatch.syspath_prepend(tmp_path)

    def double(x):
        import slow_here

        return x * slow_here.factor

    assert check("00.double", double).status == "correct"


def test_without_threads_the_stop_button_works(no_threads):
    def pressed(q, k):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check("03.scores", pressed)


def test_a_keyboard_interrupt_of_the_answers_own_is_an_error_like_others():
    def interrupts(q, k):
        raise KeyboardInterrupt

    assert check("03.scores", interrupts).mistake == "raises"


@pytest.mark.parametrize("threads", [True, False])
def test_what_the_work_itself_raises_is_raised(threads, request):
    if not threads:
        request.getfixturevalue("no_threads")
    with pytest.raises(ZeroDivisionError):
        stopping.run(lambda: 1 / 0, 1.0, lambda: None)


def test_numbers_that_are_drawn_are_the_same_at_each_check_and_the_notebooks_stay():
    np.random.seed(5)
    random.seed(5)
    want = np.random.rand(), random.random()
    np.random.seed(5)
    random.seed(5)

    def draws(q, k):
        return right(q, k) + np.random.rand() + random.random()

    assert repr(check("03.scores", draws)) == repr(check("03.scores", draws))
    assert (np.random.rand(), random.random()) == want
