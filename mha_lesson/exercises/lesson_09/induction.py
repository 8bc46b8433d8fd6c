"""Exercise 09.induction."""

import numpy as np

from mha_lesson.exercises.engine import Exercise, Mistakes, Probe
from mha_lesson.exercises.engine.probes import usual_forms, wave
from mha_lesson.steps.inspection import induction_scores
from mha_lesson.steps.masks import causal_mask
from mha_lesson.steps.softmax import masked_softmax


def _causal_weights(num_heads: int, n: int, step: float, dtype=np.float64) -> np.ndarray:
    return masked_softmax(wave(num_heads, n, n, step=step, size=2, dtype=dtype), causal_mask(n, n))


def _scores_with(weights, tokens, choose):
    """The mean over repeated positions of what `choose(weights, i, earlier)` gives for each head."""
    found = []
    for i, token in enumerate(tokens):
        earlier = [j for j in range(i) if tokens[j] == token]
        if earlier:
            found.append(choose(weights, i, earlier))
    return np.mean(found, axis=0) if found else np.zeros(len(weights), weights.dtype)


def _scores_at(weights, tokens, places):
    """The mean of the weights at `places(i)`, over the positions i that have such places."""
    found = [weights[:, i, at].sum(axis=-1) for i in range(len(tokens)) if (at := places(i))]
    return np.mean(found, axis=0) if found else np.zeros(len(weights), weights.dtype)


def _places_by(tokens_fit):
    """A score that looks at the places j for which `tokens_fit(tokens, i, j)`, within the sequence."""
    return lambda weights, tokens: _scores_at(
        weights, tokens, lambda i: [j for j in range(len(tokens)) if tokens_fit(tokens, i, j)]
    )


def _error_without_repeats(weights, tokens):
    if not _repeats(tokens):
        raise ZeroDivisionError
    return induction_scores(weights, tokens)


def _repeats(tokens):
    return sum(token in tokens[:i] for i, token in enumerate(tokens))


def _pairs(tokens):
    return sum(tokens[:i].count(token) for i, token in enumerate(tokens))


def _induction_by_matrix(weights, tokens):
    ids = np.array(tokens)
    same = np.tril(ids[:, None] == ids[None], -1)  # (i, j): j is an earlier copy of i
    after = np.zeros_like(same)
    after[:, 1:] = same[:, :-1]
    rows = same.any(axis=1)
    return (weights * after).sum(-1)[:, rows].sum(-1) / max(rows.sum(), 1)


def _induction_by_places(weights, tokens):
    total, n, seen = [0.0] * len(weights), 0, {}
    for i, token in enumerate(tokens):
        if token in seen:
            n += 1
            total = [t + sum(float(w[i, j + 1]) for j in seen[token]) for t, w in zip(total, weights, strict=True)]
        seen.setdefault(token, []).append(i)
    return [t / n for t in total] if n else total


mistake = Mistakes()


mistake.edit(
    "at_the_copy",
    """The right positions are counted. But you look at the earlier copy itself; an induction head looks at what came
    after it, one place further.""",
    old="[j + 1 for",
    new="[j for",
)


@mistake
def before_the_copy(weights, tokens):
    """The right positions are counted. But you look one place before the earlier copy; an induction head looks at what
    came after it."""
    return _scores_with(weights, tokens, lambda w, i, earlier: w[:, i, [j - 1 for j in earlier if j]].sum(-1))


mistake.function(
    "before_the_copy_only_if_there",
    """Weights are added up and averaged in the right way. But you look one place before the earlier copy; an induction
    head looks at what came after it: tokens[j - 1] == tokens[i].""",
    _places_by(lambda tokens, i, j: j + 1 < i and tokens[j + 1] == tokens[i]),
)

mistake.function(
    "before_the_copy_and_before_itself",
    """Weights are added up and averaged in the right way. But you look one place before, and the token counts as its
    own copy; an induction head looks at what came AFTER an EARLIER one: tokens[j - 1] == tokens[i].""",
    _places_by(lambda tokens, i, j: j < i and tokens[j + 1] == tokens[i]),
)


@mistake
def two_after_the_copy(weights, tokens):
    """The right positions are counted. But you look two places behind the earlier copy; what came right after it is at
    j + 1."""
    return _scores_with(
        weights, tokens, lambda w, i, earlier: w[:, i, [j + 2 for j in earlier if j + 2 < w.shape[2]]].sum(-1)
    )


@mistake
def looks_ahead(weights, tokens):
    """The right positions are counted. But you look at what comes after position i, the future: there all weights are
    0, and the last token has none. What came after the EARLIER copy is at j + 1."""
    return _scores_with(weights, tokens, lambda w, i, earlier: w[:, i, i + 1])


@mistake
def previous_token(weights, tokens):
    """This is the score of a previous-token head, the other half of the pair. An induction head looks at the place
    after the earlier copy of the token."""
    return np.mean([weights[:, i, i - 1] for i in range(1, len(tokens))], axis=0)


@mistake
def previous_token_at_repeats(weights, tokens):
    """The right positions are counted. But you look at the token just before; an induction head looks at the place
    after the earlier copy."""
    return _scores_with(weights, tokens, lambda w, i, earlier: w[:, i, i - 1])


@mistake
def itself(weights, tokens):
    """The right positions are counted. But you look at the weight of the token to itself; an induction head looks at
    the place after the earlier copy."""
    return _scores_with(weights, tokens, lambda w, i, earlier: w[:, i, i])


mistake.edit(
    "first_copy_only",
    """Right where a token occurred once before. But after several copies only the first counts (list.index finds no
    other): add up the weights after all of them.""",
    old="weights[:, i, after]",
    new="weights[:, i, after[:1]]",
)

mistake.edit(
    "last_copy_only",
    """Right where a token occurred once before. But after several copies only the last counts: add up the weights after
    all of them.""",
    old="weights[:, i, after]",
    new="weights[:, i, after[-1:]]",
)

mistake.edit(
    "mean_over_copies",
    """Right where a token occurred once before. But with several copies a head may share its look among them: add these
    weights up, and take the mean over positions only.""",
    old=".sum(axis=-1)",
    new=".mean(axis=-1)",
)

mistake.edit(
    "largest_copy",
    """Right where a token occurred once before. But with several copies a head may share its look among them: add these
    weights up in place of taking the largest.""",
    old=".sum(axis=-1)",
    new=".max(axis=-1)",
)


@mistake
def divided_by_pairs(weights, tokens):
    """The weights are the right ones. But you divide by the number of pairs; divide by the number of positions whose
    token occurred before."""
    return induction_scores(weights, tokens) * _repeats(tokens) / max(_pairs(tokens), 1)


@mistake
def divided_by_all(weights, tokens):
    """The weights are the right ones. But you divide by all L positions; the mean is over those whose token occurred
    before, the others have nothing to find."""
    return induction_scores(weights, tokens) * _repeats(tokens) / len(tokens)


mistake.edit(
    "summed",
    """The weights are the right ones. But the sum over positions grows with the text: take the mean.""",
    old="np.mean(found, axis=0)",
    new="np.sum(found, axis=0)",
)

mistake.edit(
    "queries_and_keys_swapped",
    """The right pairs are found. But you look from the earlier place forward, and there a causal mask has put 0: rows
    are queries, weights[:, i, j + 1].""",
    old="weights[:, i, after]",
    new="weights[:, after, i]",
)

mistake.edit(
    "not_doubled_tokens",
    """Nearly all copies are found. But not the one just before (as in 'very very'): what came after it is the token
    itself, and it counts. Earlier places are range(i).""",
    old="range(i)",
    new="range(i - 1)",
)

mistake.edit(
    "wraps_around",
    """The place after an earlier copy is the right one. But with j = 0 you ask tokens[-1], and that is the LAST token:
    let j begin at 1.""",
    old="j + 1 for j in range(i) if tokens[j] == token",
    new="j for j in range(i + 1) if tokens[j - 1] == token",
)

mistake.edit(
    "wraps_around_and_not_doubled_tokens",
    """Most places are right. But j runs from 1 to i, both included: with j = 0 you ask tokens[-1], the LAST token, and
    j = i is what came after a copy just before.""",
    old="j + 1 for j in range(i) if tokens[j] == token",
    new="j for j in range(i) if tokens[j - 1] == token",
)

mistake.function(
    "later_copies",
    """The weights after earlier copies are the right ones. But copies further on count too, and a token that comes for
    the first time has nothing to find yet: j <= i.""",
    _places_by(lambda tokens, i, j: j and j - 1 != i and tokens[j - 1] == tokens[i]),
)

mistake.edit(
    "later_copies_past_the_end",
    """The place after a copy is the right one. But copies further on count too, until one is the last token and nothing
    comes after it: j <= i.""",
    old="range(i) if",
    new="range(len(tokens)) if j != i and",
)


@mistake
def divided_by_all_that_repeat(weights, tokens):
    """The weights are the right ones. But you divide by all positions whose token comes more than once, the first copy
    too; it has nothing to find yet. Count those with an EARLIER copy."""
    return (
        induction_scores(weights, tokens) * _repeats(tokens) / max(sum(tokens.count(token) > 1 for token in tokens), 1)
    )


mistake.function(
    "its_own_copy",
    """The weights after earlier copies are in it. But each token counts as a copy of itself, so that nearly every
    position is in the mean: j <= i.""",
    _places_by(lambda tokens, i, j: j and tokens[j - 1] == tokens[i]),
)

mistake.function(
    "matches_the_next_token",
    """Earlier places are compared, good. But you look for the token that comes next, tokens[i + 1], and query i cannot
    know it. Look for copies of tokens[i], and then one place further.""",
    _places_by(lambda tokens, i, j: j <= i and i + 1 < len(tokens) and tokens[j] == tokens[i + 1]),
)

mistake.function(
    "matches_the_next_token_before",
    """Earlier places are compared, good. But you look for the token that comes next, tokens[i + 1], and query i cannot
    know it. Look for copies of tokens[i] before i, and then one place further.""",
    _places_by(lambda tokens, i, j: j < i and i + 1 < len(tokens) and tokens[j] == tokens[i + 1]),
)

mistake.edit(
    "share_of_largest",
    """The right places are found. But you count how often the LARGEST weight is at one of them; asked for is how much
    weight they get together: add it up.""",
    old="weights[:, i, after].sum(axis=-1)",
    new="np.isin(weights[:, i].argmax(axis=-1), after) * 1.0",
)

mistake.edit(
    "nan_alone_without_repeats",
    """Right where a token repeats. But where no token does, the mean of an empty list is one NaN: return a zero for
    each head then.""",
    old="np.zeros(len(weights), weights.dtype)",
    new="np.nan",
)

mistake.edit(
    "one_zero_without_repeats",
    """Right where a token repeats. But where no token does you return a single 0; it is one for each head:
    np.zeros(H).""",
    old="np.zeros(len(weights), weights.dtype)",
    new="0.0",
)

mistake.function(
    "error_without_repeats",
    """Right where a token repeats. But where no token does you divide by 0: return a zero for each head then.""",
    _error_without_repeats,
)

mistake.edit(
    "nan_without_repeats",
    """Right where a token repeats. But where no token does you divide 0 by 0: return zeros then.""",
    old="np.zeros(len(weights), weights.dtype)",
    new="np.full(len(weights), np.nan)",
)


@mistake
def heads_averaged(weights, tokens):
    """The weights are the right ones. But you averaged over the heads as well; each has a score of its own, (H,)."""
    return induction_scores(weights, tokens).mean()


INDUCTION = Exercise(
    id="09.induction",
    signature="induction(weights, tokens)",
    solution=induction_scores,
    probes=lambda: [
        Probe((_causal_weights(2, 5, 1.3), [7, 3, 5, 7, 3]), "2 heads, tokens 7 3 5 7 3"),
        Probe((_causal_weights(5, 7, 0.9), [2, 2, 5, 2, 5, 5, 3]), "5 heads, tokens 2 2 5 2 5 5 3"),
        Probe((_causal_weights(3, 11, 1.7), [4, 1, 4, 6, 1, 4, 4, 6, 0, 9, 1]), "3 heads, 11 tokens"),
        Probe((_causal_weights(3, 5, 1.1), [1, 2, 3, 4, 5]), "no token repeats"),
        Probe((_causal_weights(2, 7, 2.1, np.float32), [3, 1, 3, 1, 3, 1, 2]), "2 heads, 7 tokens, float32"),
    ],
    mistakes=mistake.all,
    forms={
        "matrices": _induction_by_matrix,
        "a dictionary of places": _induction_by_places,
        "by definition": lambda weights, tokens: _scores_with(
            weights, tokens, lambda w, i, earlier: sum(w[:, i, j + 1] for j in earlier)
        ),
        "whole zeros without a repeat": lambda weights, tokens: (
            induction_scores(weights, tokens).tolist() if _repeats(tokens) else [0] * len(weights)
        ),
        **usual_forms(induction_scores),
    },
    hints=(
        "For each position i: which places j come right after an earlier copy of its token? 1 <= j <= i and tokens[j - "
        "1] == tokens[i]. (With j = 0, tokens[-1] would be the last token.)",
        "places = [j for j in range(1, i + 1) if tokens[j - 1] == tokens[i]]. How much weight does query i give to "
        "them, all together?",
        "weights[:, i, places].sum(axis=-1) has one number for each head.",
        "Take the mean over the positions that have an earlier copy, and zeros if there is none.",
    ),
    well_done="A head near 1 here continues what it has seen before: an induction head.",
)  # fmt: skip
