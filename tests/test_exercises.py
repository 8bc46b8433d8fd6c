"""The registry of exercises: every mistake under its own name, every right form accepted."""

import contextlib
import itertools
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mha_lesson.exercises import REGISTRY, adopt, check, hint, solution, status
from mha_lesson.exercises.engine import api, record, sandbox
from mha_lesson.exercises.engine.compare import difference, plain
from mha_lesson.exercises.engine.probes import wave
from mha_lesson.exercises.engine.protocol import Protocol
from tests.conftest import HAS_TORCH

EXERCISES = list(REGISTRY.values())
TESTABLE = [e for e in EXERCISES if HAS_TORCH or not e.needs_torch]
MISTAKES = [(e, m) for e in EXERCISES for m in e.mistakes]
FORMS = [(e, name) for e in EXERCISES for name in e.forms]


def named(pairs):
    return [f"{e.id}-{getattr(x, 'name', x)}" for e, x in pairs]


@pytest.fixture(scope="session", autouse=True)
def _torch_loaded():
    """Imported before the clock of any answer runs."""
    with contextlib.suppress(ImportError):
        import torch  # noqa: F401


@pytest.fixture(autouse=True)
def _torch_there_if_needed(request):
    e = getattr(request.node, "callspec", None) and request.node.callspec.params.get("e")
    if e and e.missing:
        pytest.skip(e.missing)


# -- the registry ---------------------------------------------------------------------------


def test_the_ids_of_the_curriculum_are_there():
    wanted = """00.double 00.lookup 01.embed 01.positions 01.rotary 02.qkv 03.scores 04.causal
    04.padding 04.combine 04.window 05.softmax 05.masked 06.split 06.merge 06.output 06.mha"""
    assert set(wanted.split()) <= set(REGISTRY)


def test_there_are_enough_mistakes_and_forms():
    assert len(MISTAKES) >= 150
    assert all(len(e.forms) >= 3 for e in EXERCISES)


def test_the_readme_counts_right():
    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
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


def test_the_learner_sees_the_package_function_as_solution():
    assert "math.sqrt(d_head)" in repr(solution("03.scores"))
    assert "def attention_scores" in solution("03.scores")._repr_markdown_()
    assert "def project(" in repr(solution("06.output")), "what the solution calls is shown too"
    assert "an array of floats with the axes *any, L and D. A name with *" in repr(solution("03.scores"))
    assert repr(solution("03.scores")).startswith("import math\nfrom ")
    assert "an array of floats with the axis S" in repr(solution("12.online"))
    assert repr(solution("11.bytes")).startswith("def "), "what needs nothing begins at once"


@pytest.mark.parametrize("id", REGISTRY)
def test_a_solution_that_is_pasted_into_a_cell_runs_and_is_right(id):
    if REGISTRY[id].missing:
        pytest.skip("PyTorch is not installed")
    cell = {"np": np}
    exec(solution(id).text, cell)
    assert check(id, cell[REGISTRY[id].signature.split("(")[0]]).status == "correct"


# -- two mistakes at once -------------------------------------------------------------------


def test_a_pair_is_named_when_it_alone_explains_everything():
    e = REGISTRY["03.scores"]
    by_name = {m.name: m for m in e.mistakes}
    both = e.variant(by_name["no_scale"], by_name["transposed"])
    result = check("03.scores", both)
    assert result.mistake == "no_scale+transposed"
    assert result.message == (
        "Two things at once explain every probe.\n"
        "1. The dot products are not divided by sqrt(d): their spread grows with d and softmax saturates.\n"
        "2. Rows must belong to queries and columns to keys: q @ k^T. You have the transpose."
    )


def test_a_wrong_pair_is_never_named():
    """For every pair that can be built: its own name, one mistake really in it, or no name."""
    wrong, named_pairs = [], 0
    for e in TESTABLE:
        for pair in itertools.combinations(e.mistakes, 2):
            variant = e.variant(*pair)
            if variant is None or any(m.function for m in pair):
                continue
            result = check(e.id, variant)
            names = {m.name for m in pair}
            known = {m.name for m in e.mistakes}
            said = set(result.mistake.split("+")) & known if result.mistake else set()
            named_pairs += said == names
            if said and said != names and len(said) == 2:
                wrong.append((e.id, names, said))
    assert not wrong
    assert named_pairs > 50


# -- bad answers, each with a message of its own --------------------------------------------


def returns_none(q, k):
    return None


def prints(q, k):
    print(q @ k.swapaxes(-1, -2))


def raises(q, k):
    return q @ k.no_such_thing


def loops(q, k):
    while True:
        pass


def stubborn(q, k):
    while True:
        with contextlib.suppress(BaseException):
            time.sleep(0.01)


def writes(q, k):
    q /= np.sqrt(q.shape[-1])
    return q @ k.swapaxes(-1, -2)


def leaves(q, k):
    sys.exit("bye")


BAD = {
    "raises": raises,
    "returns_none": returns_none,
    "prints": prints,
    "wrong_type": lambda q, k: {"scores": q},
    "wrong_shape": lambda q, k: np.zeros((2, 2)),
    "wrong_dtype": lambda q, k: (q @ k.swapaxes(-1, -2)).astype(int),
    "changes_input": writes,
    "nan": lambda q, k: q @ k.swapaxes(-1, -2) * np.nan,
    "parameters": lambda q: q,
    "not_a_function": np.zeros((2, 3)),
    "different": lambda q, k: q @ k.swapaxes(-1, -2) * 0.123,
}


@pytest.mark.parametrize("kind", BAD)
def test_each_kind_of_bad_answer_has_its_own_message(kind):
    result = check("03.scores", BAD[kind])
    assert (result.status, result.mistake) == ("incorrect", kind)
    assert repr(result) == repr(check("03.scores", BAD[kind]))


def test_the_messages_say_what_was_expected_and_what_came():
    said = {kind: check("03.scores", answer).message for kind, answer in BAD.items()}
    assert "return q @ k.no_such_thing" in said["raises"] and "AttributeError" in said["raises"]
    assert "expected shape (3, 5, 7), got (2, 2)" in said["wrong_shape"]
    assert "got int64" in said["wrong_dtype"] and "expected values of type float64" in said["wrong_dtype"]
    assert "writes into its argument q" in said["changes_input"]
    assert "(q); it will be called with 2 arguments, as scores(q, k)" in said["parameters"]
    assert 'check("03.scores", scores)' in said["not_a_function"]
    assert "at [0, 0, 0] expected 2.000000, got 0.492000" in said["different"]
    assert "got a dict" in said["wrong_type"]
    assert "`return` in place of `print`" in said["prints"]


def test_right_names_in_another_order_are_said():
    result = check("03.scores", lambda k, q: q @ k)
    assert result.mistake == "parameter_order" and "you have (k, q)" in result.message


def test_id_and_function_in_the_wrong_order_are_said():
    result = check(loops, "03.scores")
    assert result.mistake == "swapped_arguments" and 'check("03.scores", loops)' in result.message


def test_an_error_in_a_product_comes_with_the_shapes():
    said = check("03.scores", lambda q, k: q @ k.T).message
    assert "The shapes that came in: q (3, 5, 4), k (3, 7, 4)." in said


def test_an_assert_in_a_written_test_is_explained():
    def is_scaled(scores):
        assert scores(np.ones((1, 1, 4)), np.ones((1, 1, 4))).max() == 17
        return True

    assert "it returns False; it does not raise" in check("03.test_scaled", is_scaled).message


def test_an_import_inside_an_answer_is_not_counted_and_not_cut_in_half(monkeypatch, tmp_path):
    monkeypatch.setattr(sandbox, "SECONDS", 1.0)
    (tmp_path / "slow_to_import.py").write_text("import time\ntime.sleep(1.6)\nfactor = 2\n")
    monkeypatch.syspath_prepend(tmp_path)

    def double(x):
        import slow_to_import

        return x * slow_to_import.factor

    assert check("00.double", double).status == "correct"


def test_writing_into_a_dictionary_of_arrays_gets_a_mend_that_helps():
    e = REGISTRY["06.mha"]

    def answer(x, params, num_heads, keep):
        output = e.solution(x, params, num_heads, keep)
        params["w_q"] /= 2
        return output

    result = check("06.mha", answer)
    assert result.mistake == "changes_input" and "rather than `params['w_q'] /= 2`" in result.message


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


def test_half_precision_is_told_apart_from_a_wrong_number():
    answer = lambda q, k: (q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])).astype(np.float16)  # noqa: E731
    result = check("03.scores", answer)
    assert result.mistake == "wrong_dtype" and "computed in float16" in result.message


def test_an_unknown_id_is_answered_with_a_guess():
    result = check("03.score", lambda q, k: q)
    assert result.mistake == "unknown_id" and "03.scores" in result.message
    assert check(3, None).mistake == "unknown_id"
    assert "no exercise" in repr(hint("nonsense")) and "no exercise" in repr(solution("nonsense"))
    with pytest.raises(KeyError, match="no exercise"):
        adopt("nonsense", print)


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


class Tricky:
    """An answer that raises at every look."""

    def __getattr__(self, name):
        raise RuntimeError(name)


odd_values = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.binary(max_size=3),
    st.lists(st.one_of(st.floats(), st.text(max_size=2), st.lists(st.integers(), max_size=3)), max_size=3),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=2),
    st.sampled_from([Tricky(), Tricky, ..., object(), 1j, np.zeros((2, 0)), np.array("x"), iter([1]), (1, [2]), ()]),
)  # fmt: skip


@settings(max_examples=80, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(id=st.sampled_from([e.id for e in TESTABLE]), value=odd_values, error=st.booleans())
def test_random_wrong_code_never_makes_check_raise(id, value, error):
    def answer(*args):
        if error:
            raise ValueError(value)
        return value

    result = check(id, answer)
    assert result.status in ("incorrect", "correct") and isinstance(repr(result), str)
    assert isinstance(check(id, value).message, str)


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    id=st.sampled_from(
        [e.id for e in TESTABLE if e.protocol.judge is Protocol.judge and not e.id.endswith(("scaled", "test_padding"))]
    ),
    factor=st.floats(-3, 3).filter(lambda f: abs(f - 1) > 0.01),
    shift=st.floats(-2, 2),
)
def test_a_scaled_and_shifted_solution_is_never_correct(id, factor, shift):
    e = REGISTRY[id]

    def answer(*args):
        out = e.solution(*args)
        if isinstance(out, tuple):
            return tuple(np.asarray(o) * factor + shift for o in out)
        return np.asarray(out) * factor + shift

    assert check(id, answer).status == "incorrect"


def test_check_is_fast_on_a_solved_exercise():
    """Not a timing test: the checks run no more calls than there are probes."""
    count = 0
    e = REGISTRY["06.mha"]

    def counting(x, params, num_heads, keep):
        nonlocal count
        count += 1
        return e.solution(x, params, num_heads, keep)

    assert check("06.mha", counting).status == "correct"
    assert count == len(e.probe_list)


# -- comparing ------------------------------------------------------------------------------


def test_plain_reads_tensors_lists_and_numbers():
    assert plain([[1, 2], [3, 4]]).shape == (2, 2)
    assert plain(2.0).shape == ()
    assert plain([np.ones(2), np.zeros(2)]).shape == (2, 2)
    assert [a.shape for a in plain((np.ones(2), [1.0]))] == [(2,), (1,)]


def test_difference_finds_nothing_in_equal_values_and_the_first_place_in_others():
    x = wave(3, 5)
    assert difference(x, x.tolist()) is None
    y = x.copy()
    y[1, 2] += 0.1
    assert difference(x, y).text.startswith("at [1, 2] expected")
    assert difference(x, x[:, :4]).kind == "wrong_shape"
    assert difference(np.tri(2, dtype=bool), np.tri(2)).kind == "wrong_dtype"
    assert difference(np.asarray(2.0), 2) is None


# -- hints, adopt, status, progress ---------------------------------------------------------


def test_hints_go_one_deeper_at_each_call_and_end_with_the_solution(monkeypatch):
    monkeypatch.setattr(api, "_hints_given", {})
    texts = [hint("05.softmax").text for _ in range(5)]
    assert texts[0].startswith("05.softmax, hint 1 of 3") and texts[1].startswith("05.softmax, hint 2")
    assert texts[2] == texts[3] == texts[4] and 'solution("05.softmax")' in texts[2]


def test_adopt_gives_back_what_works_and_says_which(capsys):
    e = REGISTRY["03.scores"]
    mine = e.forms["einsum"]
    assert adopt("03.scores", mine).__wrapped__ is mine
    assert adopt("03.scores", adopt("03.scores", mine)).__wrapped__ is mine, "a second run changes nothing"
    assert adopt("03.scores", BAD["different"]) is e.solution
    assert adopt("03.scores", adopt("03.scores", BAD["different"])) is e.solution
    assert capsys.readouterr().out.count("until yours is right") == 3
    assert adopt("03.scores", mine)
    adopt("03.scores", BAD["different"])
    out = capsys.readouterr().out
    assert "your own function" in out and "the course's own function" in out


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


@pytest.fixture
def record_file(tmp_path, monkeypatch):
    file = tmp_path / "folder" / "record.json"
    monkeypatch.setenv("MHA_LESSON_PROGRESS", str(file))
    monkeypatch.setattr(api, "_sitting", {})
    return file


def test_progress_is_kept_and_solved_stays_solved(record_file, monkeypatch):
    e = REGISTRY["03.scores"]
    check("03.scores", BAD["different"])
    assert record.load()["03.scores"].items() >= {"status": "incorrect", "attempts": 1}.items()
    check("03.scores", e.forms["einsum"])
    check("03.scores", BAD["nan"])
    assert record.load()["03.scores"].items() >= {"status": "correct", "attempts": 3}.items()
    monkeypatch.setattr(api, "_sitting", {})  # the next day
    assert "1 of 3 exercises solved in lesson 03" in status("03").text
    assert "x  03.scores" in status().text
    assert {file.name for file in record_file.parent.iterdir()} == {"record.json", "record.json.lock"}


def test_an_unreadable_record_is_put_aside_not_lost(record_file):
    record_file.parent.mkdir()
    record_file.write_text("{not json")
    check("00.double", lambda x: x + x)
    assert record.load().keys() == {"00.double"} and record.load()["00.double"]["status"] == "correct"
    assert (record_file.parent / "record.unreadable-1.json").read_text() == "{not json"


def test_a_folder_that_cannot_be_made_does_not_spoil_the_answer(tmp_path, monkeypatch):
    blocker = tmp_path / "file"
    blocker.write_text("")
    monkeypatch.setenv("MHA_LESSON_PROGRESS", str(blocker / "record.json"))
    assert check("00.double", lambda x: x + x).status == "correct"


def test_the_null_device_switches_the_record_off(monkeypatch):
    monkeypatch.setenv("MHA_LESSON_PROGRESS", os.devnull)
    assert record.path() is None and record.load() == {}


def test_the_exercises_import_neither_torch_nor_matplotlib():
    code = (
        "import sys, mha_lesson.exercises as e; e.check('03.scores', lambda q, k: q); "
        "print({'torch', 'matplotlib'} & set(sys.modules))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "set()"
