"""The registry: every mistake under its own name, every right form accepted."""

import numpy as np
import pytest

from mha_lesson.course.paths import ROOT
from mha_lesson.exercises import REGISTRY, adopt, check, solution
from tests.exercises.helpers import EXERCISES

# ---------------------------------------------------------------------------- answers in many shapes


PRACTICE = [e for e in REGISTRY.values() if e.id[:2] in ("07", "09", "10") and e.id != "10.choose"]


@pytest.mark.parametrize("fill", [0.0, 1.0, np.nan])
@pytest.mark.parametrize("e", PRACTICE, ids=lambda e: e.id)
def test_a_stub_that_returns_one_number_everywhere_is_no_known_mistake(e, fill):
    """It has the right shape, and nobody made the mistake that happens to come out so."""

    def stub(*args):
        out = e.solution(*args)
        if isinstance(out, tuple):
            return tuple(np.full(np.shape(o), fill) for o in out)
        return np.full(np.shape(out), fill)

    assert check(e.id, stub).mistake in ("different", "nan", "wrong_dtype", "wrong_type")


MISTAKES = [(e, m) for e in EXERCISES for m in e.mistakes]


FORMS = [(e, name) for e in EXERCISES for name in e.forms]


def named(pairs):
    return [f"{e.id}-{getattr(x, 'name', x)}" for e, x in pairs]


# -- the registry ---------------------------------------------------------------------------


@pytest.mark.parametrize("e", EXERCISES, ids=lambda e: e.id)
def test_right_answers_are_tried_in_three_forms_at_least(e):
    assert len(e.forms) >= 3


def test_the_readme_counts_right():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"knows {len(MISTAKES)} wrong answers to {len(EXERCISES)} exercises" in readme


@pytest.mark.parametrize("e", EXERCISES, ids=lambda e: e.id)
def test_the_parts_of_an_exercise(e):
    names = [m.name for m in e.mistakes]
    assert len(set(names)) == len(names)
    assert len(e.hints) >= 2 and e.well_done.endswith((".", "!"))
    for m in e.mistakes:
        assert bool(m.function) != bool(m.old), f"{m.name}: one edit or a function"
        assert m.function or e.source.count(m.old) == 1, f"{m.name}: {m.old!r} must occur once"
        assert len(m.say) > 40 and m.say.rstrip()[-1] in ".:)", m.name


SQUARE = {"09.induction"}  # a token looks at the tokens of its own sequence: (H, L, L)


@pytest.mark.parametrize("e", [e for e in EXERCISES if e.id not in SQUARE], ids=lambda e: e.id)
def test_no_two_axes_of_a_probe_in_each_exercise_are_all_alike(e):
    """At least one probe has no square array, so that a swapped axis cannot hide."""
    shapes = [[a.shape for a in p.args if isinstance(a, np.ndarray)] for p in e.probe_list]
    if any(shapes):
        assert any(all(len(set(s)) == len(s) for s in probe) for probe in shapes)


@pytest.mark.parametrize("e", EXERCISES, ids=lambda e: e.id)
def test_a_stub_is_not_attempted(e):
    def stub(*args):
        raise NotImplementedError

    first, second = check(e.id, stub), check(e.id, stub)
    assert first.status == "not attempted" and first.mistake is None
    assert repr(first) == repr(second)


@pytest.mark.parametrize("e", EXERCISES, ids=lambda e: e.id)
def test_the_solution_is_right(e):
    result = e.diagnose(e.solution)
    assert (result.status, result.mistake) == ("correct", None), result
    assert check(e.id, e.solution).status == "not attempted", "the course's own function is no answer"


@pytest.mark.parametrize("e, m", MISTAKES, ids=named(MISTAKES))
def test_each_mistake_is_called_by_its_name(e, m):
    result = check(e.id, e.variant(m))
    assert (result.status, result.mistake, result.message) == ("incorrect", m.name, m.say)


@pytest.mark.parametrize("e, name", FORMS, ids=named(FORMS))
def test_right_but_unusual_forms_pass(e, name):
    if "torch" in name:
        pytest.importorskip("torch")
    result = check(e.id, e.forms[name])
    assert result.status == "correct", result


@pytest.mark.parametrize("id", REGISTRY)
def test_a_solution_that_is_pasted_into_a_cell_runs_and_is_right(id):
    if REGISTRY[id].missing:
        pytest.skip("PyTorch is not installed")
    cell = {"np": np}
    exec(solution(id).text, cell)
    assert check(id, cell[REGISTRY[id].signature.split("(")[0]]).status == "correct"


# -- hints, adopt, status, progress ---------------------------------------------------------


@pytest.mark.parametrize("e, name", FORMS, ids=named(FORMS))
def test_an_adopted_answer_comes_back_in_the_form_of_the_course(e, name):
    if "torch" in name:
        pytest.importorskip("torch")
    arguments = e.probe_list[0].args
    if (
        not e.protocol.calls_plainly
    ):  # steps hand things of their own to each other: what comes back is the function as it was
        assert adopt(e.id, e.forms[name]) is e.forms[name]
        return
    want, got = e.solution(*arguments), adopt(e.id, e.forms[name])(*arguments)
    if isinstance(want, tuple):
        assert isinstance(got, tuple) and all(isinstance(g, np.ndarray) for g in got)
    elif isinstance(want, dict):
        assert list(got) == list(want) and all(isinstance(g, np.ndarray) for g in got.values())
    elif isinstance(want, str):
        assert str(got) == want
    elif isinstance(want, bool) or hasattr(want, "detach"):
        assert type(got) is type(want)
    else:
        assert isinstance(got, np.ndarray)
