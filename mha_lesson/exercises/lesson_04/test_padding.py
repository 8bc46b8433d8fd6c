"""Exercise 04.test_padding."""

import numpy as np

from mha_lesson.exercises.engine import Exercise, Mistakes, Probe, Protocol
from mha_lesson.exercises.engine.probes import given_versions, wave
from mha_lesson.steps.softmax import masked_softmax


def is_padding_safe(attend) -> bool:
    """Does padding leave the real tokens alone? attend(x, keep): x (L, E), keep (L,) -> (L, E).

    Whatever stands in the padding, the outputs of the real tokens must not move. The outputs at
    padded places mean nothing, so they are not compared.
    """
    x = np.sin(0.7 * np.arange(35) + 0.3).reshape(7, 5)
    keep = np.arange(7) < 4
    other = x.copy()
    other[~keep] = 10 * np.cos(np.arange(15.0)).reshape(3, 5)
    return bool(np.allclose(np.asarray(attend(x, keep))[keep], np.asarray(attend(other, keep))[keep]))


def _attend(x, keep, mask=None):
    scores = x @ x.T / np.sqrt(x.shape[1])
    return masked_softmax(scores, keep if mask is None else mask) @ x


def _attenders() -> list[Probe]:
    right = {
        "the right one": _attend,
        "a right one with -1e9": lambda x, keep: (
            masked_softmax(np.where(keep, x @ x.T / np.sqrt(x.shape[1]), -1e9), True) @ x
        ),
        "a right one that cuts the padding off": lambda x, keep: _cut(x, keep),
        "a right one that clears the padded values": lambda x, keep: (
            masked_softmax(x @ x.T / np.sqrt(x.shape[1]), keep) @ np.where(keep[:, None], x, 0)
        ),
    }
    wrong = {
        "a version that ignores the mask": lambda x, keep: _attend(x, np.ones(len(x), bool)),
        "a version that masks queries, not keys": lambda x, keep: _attend(x, keep, keep[:, None]),
        "a version that sets masked scores to 0": lambda x, keep: (
            masked_softmax(x @ x.T / np.sqrt(x.shape[1]) * keep, True) @ x
        ),
        "a version that masks for the first query only": lambda x, keep: _attend(
            x, keep, keep | (np.arange(len(x)) > 0)[:, None]
        ),
        "a version that lets one padding place in": lambda x, keep: _attend(
            x, keep | np.concatenate([[False], keep[:-1]])
        ),
        "a version in which the last real query sees the padding": lambda x, keep: _attend(
            x, keep, keep | (np.arange(len(x)) == np.flatnonzero(keep)[-1])[:, None]
        ),
        "a version in which only the first query sees the padding": lambda x, keep: _attend(
            x, keep, keep | (np.arange(len(x)) == 0)[:, None]
        ),
        "a version that lets the last padding place in": lambda x, keep: _attend(
            x, keep | (np.arange(len(x)) == len(x) - 1)
        ),
        "a version that adds the mask of 0 and 1": lambda x, keep: (
            masked_softmax(x @ x.T / np.sqrt(x.shape[1]) + keep, True) @ x
        ),
    }
    return given_versions({**right, **wrong}, _patient)


def _patient(attend):
    """Takes lists too, and a keep of 0 and 1: a learner's test should not fail on how it calls."""
    return lambda x, keep: attend(np.asarray(x, float), np.asarray(keep, bool))


def _cut(x, keep):
    out = np.zeros_like(x)
    out[keep] = _attend(x[keep], np.ones(keep.sum(), bool))
    return out


def _compare(attend, rows=slice(None), change=10.0, places=slice(3, None)):
    x, keep = wave(5, 3), np.arange(5) < 3
    other = x.copy()
    other[places] += change
    return bool(np.allclose(np.asarray(attend(x, keep))[rows], np.asarray(attend(other, keep))[rows]))


mistake = Mistakes()


@mistake
def cannot_fail(attend):
    """It accepts every right version. But it accepts the wrong ones too: change what stands in the padding (in a copy
    of x, and by a large amount), and compare the outputs of the real tokens before and after."""
    return True


@mistake
def always_false(attend):
    """It rejects every wrong version. But it rejects right ones too. Outputs AT padded places may change, nobody uses
    them: compare out[keep] alone."""
    return False


mistake.function(
    "all_rows",
    """Changing the padding and comparing is right. But you compare the padded rows too, and nobody uses those: compare
    out[keep] alone.""",
    _compare,
)


@mistake
def nan_padding(attend):
    """Rubbish in the padding, and only the real tokens compared: good. But NaN or inf comes through a weight of 0 (0 *
    NaN is NaN), so right versions fail: use large finite numbers."""
    return _compare(attend, rows=slice(3), change=np.nan)


@mistake
def last_place_only(attend):
    """Changing the padding and comparing is right. But you change only its last place; a version that lets one place
    too many in gets through. Change all of it."""
    return _compare(attend, rows=slice(3), places=slice(4, None))


@mistake
def first_place_only(attend):
    """Changing the padding and comparing is right. But you change only its first place; a version that lets another one
    in gets through. Change all of it."""
    return _compare(attend, rows=slice(3), places=slice(3, 4))


@mistake
def last_row(attend):
    """Changing the padding and comparing is right. But you look at the last real token alone, and a leak can sit in
    any: compare all real tokens."""
    return _compare(attend, rows=2)


@mistake
def first_row(attend):
    """Changing the padding and comparing is right. But you look at the first token alone, and a leak can sit in any:
    compare all real tokens."""
    return _compare(attend, rows=0)


@mistake
def inverted(attend):
    """It tells right from wrong perfectly. But it answers the other way round: True must mean 'safe'."""
    return not is_padding_safe(attend)


TEST_PADDING = Exercise(
    id="04.test_padding",
    protocol=Protocol(given=_patient),
    signature="is_padding_safe(attend)",
    solution=is_padding_safe,
    probes=_attenders,
    mistakes=mistake.all,
    forms={
        "with larger padding": lambda attend: _compare(attend, rows=slice(3), change=1000.0),
        "against the short sequence": lambda attend: np.allclose(
            np.asarray(attend(wave(5, 3), np.arange(5) < 2))[:2], _attend(wave(5, 3)[:2], np.ones(2, bool))
        ),
        "nested lists": lambda attend: [is_padding_safe(attend)][0],
    },
    hints=(
        "You get a function. Call it twice: what may differ between the two calls?",
        "Change only what stands in the padding. The outputs of the real tokens must stay.",
        "Compare with np.allclose, and only the rows where keep is True.",
    ),
    well_done="A property, not a number: it holds for every right layer, in this course and at work.",
)  # fmt: skip
