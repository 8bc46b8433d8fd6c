"""Exercise 07.decode."""

from collections.abc import Callable
from typing import Any

import numpy as np

from mha_lesson.exercises.engine import Exercise, Mistakes, Probe, Protocol, sandbox
from mha_lesson.exercises.engine.compare import NotPlain, plain
from mha_lesson.exercises.engine.probes import usual_forms, wave
from mha_lesson.steps.encoder_decoder import greedy_decode

_TOO_LONG = 40  # tokens; the longest answer that is asked for has 7


def _model(vocabulary: int, following: Callable[[list[int]], int], dtype=np.float64) -> Callable:
    """A step function: row i favours the token `following(prefix[: i + 1])`. As a causal decoder, it is pure."""

    def step(prefix):
        ids = [int(i) for i in np.asarray(prefix).ravel()]
        if len(ids) > _TOO_LONG:
            raise OverflowError(f"the prefix has more than {_TOO_LONG} tokens, and this model has no more positions")
        scores = wave(len(ids), vocabulary, size=0.5, step=1.9, dtype=dtype) - 1
        for i in range(len(ids)):
            scores[i, following(ids[: i + 1]) % vocabulary] += 2 + i % 2
        return scores

    return step


def _writes(*answer: int) -> Callable:
    """It writes these tokens one after the other, whatever the prefix is, and then stays with the last."""
    return lambda prefix: answer[min(len(prefix), len(answer)) - 1]


def _decode_probes() -> list[Probe]:
    return [
        Probe((_model(7, _writes(3, 1, 4, 2)), 0, 2, 6), "a model that writes 3, 1, 4 and then stop = 2"),
        Probe((_model(11, lambda prefix: 3 * sum(prefix) + len(prefix)), 1, 0, 5),
              "a model in which each token depends on all before it, longest 5"),
        Probe((_model(5, _writes(4, 3, 1, 1)), 2, 0, 7), "a model that never stops, longest 7"),
        Probe((_model(5, _writes(3, 4)), 1, 3, 7), "a model that stops at once"),
        Probe((_model(7, _writes(5, 6, 4, 3), np.float32), 6, 3, 5),
              "start = 6, a token that comes up again as a word, float32"),
        Probe((_model(5, _writes(4, 1, 2, 0)), 3, 0, 3), "exactly 3 tokens, and longest 3"),
    ]  # fmt: skip


def _read_ids(arguments: tuple, answer: Any) -> np.ndarray:
    """Token ids as whole numbers: an empty list has no type of its own."""
    try:
        ids = np.asarray(plain(answer))
    except (NotPlain, ValueError):
        raise ValueError(f"expected a list of token ids, got {_what_is_in(answer)}") from None
    whole = ids.dtype.kind in "iuf" and np.isfinite(ids).all() and (ids == np.round(ids)).all()
    return ids.astype(int) if whole else ids


def _what_is_in(answer: Any) -> str:
    """An answer that is no list of numbers, in words: the first thing in it that is no number, if there is one."""
    if isinstance(answer, (list, tuple, np.ndarray)):
        for i, item in enumerate(np.asarray(answer, dtype=object) if isinstance(answer, np.ndarray) else answer):
            if isinstance(item, str):
                return f"one that holds text: item {i} is {str(item)!r}. Whole numbers are wanted, int(...)"
            if not isinstance(item, (int, float, np.number)):
                return f"one in which item {i} is a value of type {type(item).__name__}, not a whole number"
    return f"a value of type {type(answer).__name__}"


def _prefix_stays(function: Callable) -> bool:
    """Is step asked more than once, and each time with a single token?"""
    lengths = []
    model = _model(7, _writes(3, 1, 4, 2))

    def step(prefix):
        lengths.append(np.size(prefix))
        if len(lengths) > _TOO_LONG:
            raise OverflowError("asked too often")
        return model(prefix)

    sandbox.call_all(function, [(step, 0, 2, 6)], sandbox.SECONDS)
    return len(lengths) > 1 and set(lengths) == {1}


def _runs_on(step, start, longest):
    return greedy_decode(step, start, None, longest)


def _at_stop_only(step, start, stop, longest):
    new = _runs_on(step, start, longest)
    return new[: new.index(stop)] if stop in new else None


def _decode_by_stop_alone(step, start, stop, longest):
    tokens = [start]
    while (best := int(np.argmax(step(tokens)[-1]))) != stop:
        tokens.append(best)
    return tokens[1:]


def _decode_recursively(step, start, stop, longest):
    def more(prefix, left):
        best = int(np.argmax(np.asarray(step(prefix))[-1]))
        return [] if left == 0 or best == stop else [best, *more([*prefix, best], left - 1)]

    return more([start], longest)


def _decode_then_trim(step, start, stop, longest):
    ids = np.array([start])
    while len(ids) - 1 < longest:
        ids = np.append(ids, step(ids)[-1].argmax())
    new = ids[1:].tolist()
    return new[: new.index(stop)] if stop in new else new


mistake = Mistakes()


mistake.edit(
    "first_row",
    """The loop and its end are right. But each token is chosen by the scores that follow the start (the first row); the
    new ones are in the last row: scores[-1], of step with all tokens so far.""",
    old="scores[-1]",
    new="scores[0]",
)

mistake.edit(
    "prefix_never_grows",
    """The last row is taken, and the loop ends as it should. But your prefix never grows: step gets [start] at each
    turn and gives the same answer. Append the new token to the list that step gets.""",
    old="step(tokens)",
    new="step([start])",
    when=_prefix_stays,
)


@mistake(when=_prefix_stays)
def nothing_appended(step, start, stop, longest):
    """step is asked at each turn. But nothing is kept of what it says, so your prefix never grows and what comes back
    is empty: tokens.append(best), after the look for stop."""
    return [step([start]) for _ in range(longest)][:0]


mistake.edit(
    "all_rows",
    """The loop and its end are right. But np.argmax(scores) looks at all rows and counts through them; take the last
    row first: np.argmax(scores[-1]).""",
    old="scores[-1]",
    new="scores",
)

mistake.edit(
    "lowest",
    """The last row is the right one. But you take its lowest score; the best token has the highest: np.argmax.""",
    old="np.argmax",
    new="np.argmin",
)

mistake.edit(
    "keeps_stop",
    """The tokens are right. But the stop token is among them: look whether best is stop before you append it.""",
    old="if best == stop:\n            break\n        tokens.append(best)",
    new="tokens.append(best)\n        if best == stop:\n            break",
)

mistake.edit(
    "keeps_start",
    """The tokens are right. But the start token is among them: return what comes after it, tokens[1:].""",
    old="return tokens[1:]",
    new="return tokens",
)


@mistake
def keeps_both(step, start, stop, longest):
    """The tokens between are right. But start and stop are among them: test for stop before you append, and return
    tokens[1:]."""
    return [start, *_with_stop(step, start, stop, longest)]


@mistake
def filters_start(step, start, stop, longest):
    """The choice and the end are right. But every start is filtered out, and start may come up again as a word; only
    the first start is left out: tokens[1:]."""
    return [t for t in greedy_decode(step, start, stop, longest) if t != start]


@mistake
def filters_stop(step, start, stop, longest):
    """The choice is right, and no stop comes back. But stop is filtered out and the words after it stay; it is the end:
    leave the loop when the best token is stop."""
    return [t for t in _runs_on(step, start, longest) if t != stop]


@mistake
def filters_both(step, start, stop, longest):
    """The choice is right. But start and stop are filtered out at the end. Words after stop must not come: leave the
    loop there. And start may come up again as a word; only the first start is left out: tokens[1:]."""
    return [t for t in _runs_on(step, start, longest) if t not in (start, stop)]


mistake.edit(
    "never_stops",
    """The tokens are right as far as they should go. But stop does not end it: leave the loop when the best token is
    stop.""",
    old="if best == stop:",
    new="if best is None:",
)

mistake.edit(
    "stops_at_start",
    """The choice is right, and the loop can end early. But you compare with start; stop is the token that ends it.""",
    old="best == stop",
    new="best == start",
)

mistake.function(
    "ignores_longest",
    """All is right where the model stops by itself. But a model may never write stop: after `longest` new tokens the
    loop must end.""",
    _decode_by_stop_alone,
)

mistake.edit(
    "one_too_many",
    """The tokens are right. But where the model does not stop there is one too many: `longest` new tokens at most.""",
    old="range(longest)",
    new="range(longest + 1)",
)

mistake.edit(
    "one_too_few",
    """The tokens are right. But where the model does not stop there is one too few. `longest` new tokens may come:
    start does not count, and a last token that is not stop stays.""",
    old="range(longest)",
    new="range(longest - 1)",
)

mistake.edit(
    "last_token_only",
    """The loop and its end are right. But step gets the last token alone, and has forgotten what came before it: give
    it all tokens so far.""",
    old="step(tokens)",
    new="step(tokens[-1:])",
)

mistake.edit(
    "only_the_last",
    """The right tokens are found. But the last one alone comes back: collect them in a list.""",
    old="return tokens[1:]",
    new="return tokens[1:][-1:]",
)

mistake.edit(
    "return_in_loop",
    """The first token is right. But `return` stands inside the loop and ends it at the first turn (and where stop comes
    at once, nothing is returned): move it to the left, in line with `for`.""",
    old="tokens.append(best)\n    return tokens[1:]",
    new="tokens.append(best)\n        return tokens[1:]",
)


@mistake
def first_token_alone(step, start, stop, longest):
    """The first token is right. But no second one comes. Does a `return` stand inside the loop? It ends the loop at the
    first turn: move it to the left, in line with `for`."""
    return greedy_decode(step, start, stop, min(longest, 1))


mistake.function(
    "returns_at_stop_only",
    """All is right where the model writes stop. But after `longest` tokens the loop ends by itself, and then nothing is
    returned: put a `return` after the loop, in line with `for`.""",
    _at_stop_only,
)


DECODE = Exercise(
    id="07.decode",
    signature="decode(step, start, stop, longest)",
    solution=greedy_decode,
    protocol=Protocol(read=_read_ids),
    advice="Call your function with a small step of your own, and print the tokens at each turn of the loop.",
    probes=_decode_probes,
    mistakes=mistake.all,
    forms={
        "recursive": _decode_recursively,
        "writes on, trims later": _decode_then_trim,
        "highest by sorting": lambda step, start, stop, longest: _by_sorting(step, start, stop, longest),
        "one call too many": lambda step, start, stop, longest: (
            greedy_decode(step, start, stop, longest + 1)[:longest]
        ),
        **usual_forms(greedy_decode),
    },
    hints=(
        "Keep a list of tokens that begins with start, and a loop that runs at most `longest` times.",
        "step(tokens) has one row for each token; the row that scores the next token is the last, [-1].",
        "best = int(np.argmax(scores[-1])). If it is stop, leave the loop; otherwise append it.",
        "start is the first of the list: return tokens[1:].",
    ),
    well_done="Word by word, the best one each time: the encoder is read once, the decoder runs for each word.",
)  # fmt: skip


def _with_stop(step, start, stop, longest):
    new = greedy_decode(step, start, stop, longest)
    return new if len(new) == longest else [*new, stop]


def _by_sorting(step, start, stop, longest):
    out = ()
    for _ in range(longest):
        row = list(step((start, *out))[-1])
        best = max(range(len(row)), key=row.__getitem__)
        if best == stop:
            return out
        out = (*out, best)
    return out
