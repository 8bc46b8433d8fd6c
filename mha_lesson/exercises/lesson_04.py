"""Exercises of lesson 04: masks."""

import numpy as np

from mha_lesson.exercises.engine import Exercise, Mistake, Probe
from mha_lesson.exercises.probes import given_versions, usual_forms, wave
from mha_lesson.steps.masks import causal_mask, combine_masks, padding_mask, window_mask
from mha_lesson.steps.softmax import masked_softmax

CAUSAL = Exercise(
    id="04.causal",
    signature="causal(L, S)",
    solution=causal_mask,
    probes=lambda: [
        Probe((3, 3), "L = S = 3"),
        Probe((2, 5), "L = 2 new queries, S = 5 keys"),
        Probe((7, 7), "L = S = 7"),
        Probe((4, 9), "L = 4 new queries, S = 9 keys"),
        Probe((1, 4), "a single new query, S = 4 keys"),
    ],
    mistakes=(
        Mistake(
            "future",
            "A triangle of the right shape. But your mask keeps the future and hides the past: take the "
            "lower triangle.",
            function=lambda L, S: np.triu(np.ones((L, S), bool)),
        ),
        Mistake(
            "future_with_cache",
            "You shift the diagonal by S - L, as one must with a cache. But the triangle is the upper "
            "one: it keeps the future and hides the past. Take the lower one, np.tril.",
            function=lambda L, S: np.triu(np.ones((L, S), bool), S - L),
        ),
        Mistake(
            "inverted",
            "The triangle has its edge in the right place. But True should mean 'may attend'; yours means "
            "'blocked', as in "
            "nn.MultiheadAttention. Turn it round: ~mask.",
            "key_place <= query_place", "key_place > query_place",
        ),
        Mistake(
            "not_itself",
            "The past is seen and the future hidden. But each token must be able to see itself; your first "
            "row is empty. "
            "Include the diagonal.",
            "<=", "<",
        ),
        Mistake(
            "top_left",
            "Right for square masks. But with a cache the queries are the LAST tokens: shift the diagonal"
            " by S - L.",
            " + (S - L)", "",
        ),
        Mistake(
            "shifted_other_way",
            "Right for square masks, and you shift for the others. But the shift goes in the wrong "
            "direction: by S - L, not L - S.",
            "+ (S - L)", "- (S - L)",
        ),
        Mistake(
            "one_ahead",
            "The past is seen. But each token also sees the one after it: one diagonal less.",
            "<=", "<= 1 +",
        ),
        Mistake(
            "everything",
            "The shape is right. But nothing is hidden: a query must not see keys that come after it.",
            "key_place <= query_place", "(key_place <= query_place) | True",
        ),
        Mistake(
            "only_itself",
            "Each token sees itself, good. But it may look back too: everything up to its own place.",
            "<=", "==",
        ),
        Mistake(
            "swapped_axes",
            "The comparison is right. But rows are queries and columns keys: the shape is (L, S).",
            function=lambda L, S: causal_mask(L, S).T,
        ),
    ),
    forms={
        "tril": lambda L, S: np.tril(np.ones((L, S), bool), S - L),
        "not triu": lambda L, S: ~np.triu(np.ones((L, S), bool), S - L + 1),
        "a loop": lambda L, S: [[j <= i + S - L for j in range(S)] for i in range(L)],
        "the last rows of the square": lambda L, S: np.tri(S, dtype=bool)[-L:],
        **usual_forms(causal_mask),
    },
    hints=(
        "Draw it for L = S = 3: which of the nine places may be True?",
        "Compare a column of query places with a row of key places: np.arange(L)[:, None] and "
        "np.arange(S)[None, :].",
        "With S > L the first query does not stand at place 0 but at place S - L.",
    ),
    well_done="The last query sees all keys, also when there are more keys than queries.",
)  # fmt: skip

PADDING = Exercise(
    id="04.padding",
    signature="padding(lengths, S)",
    solution=padding_mask,
    probes=lambda: [
        Probe((np.array([3, 1]), 5), "lengths 3 and 1, S = 5"),
        Probe((np.array([2, 7, 5]), 7), "lengths 2, 7 and 5, S = 7"),
        Probe((np.array([0, 2]), 2), "an empty and a full sequence, S = 2"),
    ],
    mistakes=(
        Mistake(
            "inverted",
            "The edge is in the right place. But True should mean 'a real token'; yours marks the padding, as "
            "key_padding_mask in nn.MultiheadAttention does.",
            "np.arange(S) < ", "np.arange(S) >= ",
        ),
        Mistake(
            "one_too_many",
            "The form is right. But one padding place is let in: places count from 0, so < and not <=.",
            "np.arange(S) < ", "np.arange(S) <= ",
        ),
        Mistake(
            "one_too_few",
            "The form is right. But the last real token is cut off: place length - 1 still belongs to the "
            "sequence.",
            "np.arange(S) < lengths", "np.arange(S) < -1 + lengths",
        ),
        Mistake(
            "padding_first",
            "As many places are kept as there are tokens. But you keep the last ones; here the padding comes "
            "after the tokens.",
            "np.arange(S) < lengths", "np.arange(S)[::-1] < lengths",
        ),
        Mistake(
            "first_length_for_all",
            "The first row is right. But every sequence got the length of the first: lengths[:, None] gives "
            "each its own.",
            "lengths[:, None]", "lengths[:1, None] + 0 * lengths[:, None]",
        ),
        Mistake(
            "swapped_axes",
            "The comparison is right. But the shape is (B, S), one row for each sequence; yours is its "
            "transpose.",
            "np.arange(S) < lengths[:, None]", "(np.arange(S) < lengths[:, None]).T",
        ),
        Mistake(
            "axes_too_early",
            "The values are right, and these axes will be needed. But (B, S) is asked for here; the axes for "
            "heads and "
            "queries come when masks are combined.",
            "np.arange(S) < lengths[:, None]", "(np.arange(S) < lengths[:, None])[:, None, None, :]",
        ),
        Mistake(
            "all_real",
            "The shape is right. But no place is marked as padding: compare each place with the length of "
            "its sequence.",
            "np.arange(S) < lengths[:, None]", "np.arange(S) < S + 0 * lengths[:, None]",
        ),
    ),
    forms={
        "a loop": lambda lengths, S: [[j < n for j in range(S)] for n in lengths],
        "rows one by one": lambda lengths, S: np.stack([np.arange(S) < n for n in lengths]),
        "rows of tri": lambda lengths, S: np.tri(S + 1, S, -1, dtype=bool)[lengths],
        **usual_forms(padding_mask),
    },
    hints=(
        "Compare each place 0, 1, ..., S - 1 with the length of its sequence.",
        "np.arange(S) has shape (S,). To meet every length, the lengths must be a column.",
        "lengths[:, None] is that column; the result has shape (B, S).",
    ),
    well_done="One row for each sequence, True for its real tokens.",
)  # fmt: skip

COMBINE = Exercise(
    id="04.combine",
    signature="combine(causal, padding)",
    solution=combine_masks,
    probes=lambda: [
        Probe((causal_mask(3, 5), padding_mask([5, 2], 5)), "B 2, L 3, S 5"),
        Probe((causal_mask(5, 5), padding_mask([4, 1, 5], 5)), "B 3, L = S = 5"),
        Probe((causal_mask(4, 4), padding_mask([3, 4], 4)[:, ::-1]), "B 2, L = S = 4, padding on the left"),
        Probe((causal_mask(3, 3), padding_mask([1, 3, 2], 3)), "B = L = S = 3"),
    ],
    mistakes=(
        Mistake(
            "or",
            "The axes are right. But with | (or +) one permission is enough; a key must be allowed by "
            "both masks: &.",
            "causal & padding", "causal | padding",
        ),
        Mistake(
            "queries_padded",
            "& is right. But the padding lies on the query axis; it is keys that must not be seen: "
            "padding[:, None, None, :].",
            "[:, None, None, :]", "[:, None, :, None]",
        ),
        Mistake(
            "both_axes",
            "The keys are masked right. But padded queries need no mask (and where L and S differ it does"
            " not even fit): leave the second factor out.",
            function=lambda causal, padding: causal & padding[:, None, None, :] & padding[:, None, :, None],
        ),
        Mistake(
            "batch_on_heads",
            "& is right. But the sequences lie on the axis of the heads: with as many heads as sequences "
            "nothing would "
            "warn you. padding[:, None, None, :].",
            "[:, None, None, :]", "[None, :, None, :]",
        ),
        Mistake(
            "no_head_axis",
            "& is right, and each sequence meets its padding. But the scores have an axis for the heads: the "
            "result must be "
            "(B, 1, L, S), or sequence 1 would land on head 1.",
            "[:, None, None, :]", "[:, None, :]",
        ),
        Mistake(
            "only_causal",
            "The axes are right. But the padding has no effect: combine the two with &.",
            function=lambda causal, padding: np.broadcast_to(
                causal, (len(padding), 1, *causal.shape)
            ).copy(),
        ),
        Mistake(
            "only_padding",
            "The padding lies on the right axis. But the causal mask has no effect: combine the two with &.",
            function=lambda causal, padding: np.broadcast_to(
                padding[:, None, None, :], (len(padding), 1, *causal.shape)
            ).copy(),
        ),
        Mistake(
            "inverted",
            "The axes are right and both masks count. But the result says where NOT to look; here True means "
            "'may attend'.",
            function=lambda causal, padding: ~combine_masks(causal, padding),
        ),
        Mistake(
            "xor",
            "The axes are right. But ^ is True where exactly one mask allows; both must: &.",
            "causal & padding", "causal ^ padding",
        ),
    ),
    forms={
        "logical_and": lambda causal, padding: np.logical_and(causal[None, None], padding[:, None, None]),
        "product of booleans": lambda causal, padding: causal * padding[:, None, None, :],
        "a loop": lambda causal, padding: np.stack([(causal & row)[None] for row in padding]),
        **usual_forms(combine_masks),
    },
    hints=(
        "Both must allow: &. The rest is a matter of axes.",
        "The result has axes (B, 1, L, S). Where do B and S of the padding go?",
        "padding[:, None, None, :] is (B, 1, 1, S). causal is (L, S), and NumPy lines up the last axes.",
    ),
    well_done="(B, 1, L, S): one mask for each sequence, the same for all heads.",
)  # fmt: skip

WINDOW = Exercise(
    id="04.window",
    signature="window(L, S, width)",
    solution=window_mask,
    probes=lambda: [
        Probe((5, 5, 2), "L = S = 5, width 2"),
        Probe((7, 7, 3), "L = S = 7, width 3"),
        Probe((2, 7, 3), "L 2, S 7, width 3"),
        Probe((3, 5, 11), "a window wider than the sequence"),
    ],
    mistakes=(
        Mistake(
            "one_too_wide",
            "The band has the right form. But it is one key too wide: the token itself counts, so it sees "
            "width - 1 before it.",
            "> query_place - width", ">= query_place - width",
        ),
        Mistake(
            "one_too_narrow",
            "The band has the right form. But it is one key too narrow: itself and width - 1 before it.",
            "> query_place - width", "> query_place - width + 1",
        ),
        Mistake(
            "both_sides",
            "Far keys are hidden on both sides. But the keys after a token must be hidden too, near or far: "
            "a window is causal here.",
            "(key_place <= query_place)", "(key_place < query_place + width)",
        ),
        Mistake(
            "no_upper_edge",
            "Nothing is too far back, good. But the keys after the query must be hidden as well: "
            "key_place <= query_place.",
            "(key_place <= query_place) & ", "",
        ),
        Mistake(
            "not_itself",
            "The band has the right width. But it stands one key too early: each token sees itself, so "
            "distances go from 0 to width - 1.",
            "(key_place <= query_place) & (key_place > query_place - width)",
            "(key_place < query_place) & (key_place >= query_place - width)",
        ),
        Mistake(
            "no_lower_edge",
            "The future is hidden. But nothing is too far back yet: keys more than width - 1 before the "
            "query must be hidden.",
            "(key_place > query_place - width)", "(key_place > -1)",
        ),
        Mistake(
            "top_left",
            "Right for square masks. With more keys than queries, the queries are the last tokens: shift by "
            "S - L.",
            " + (S - L)", "",
        ),
        Mistake(
            "blocks",
            "Neighbours see each other and the future is hidden. But you cut the sequence into blocks; a "
            "window moves along "
            "with the query.",
            "(key_place > query_place - width)", "(key_place >= query_place // width * width)",
        ),
        Mistake(
            "inverted",
            "The band stands in the right place. But True should mean 'may attend'; you marked what is hidden.",
            function=lambda L, S, width: ~window_mask(L, S, width),
        ),
    ),
    forms={
        "difference of two triangles": lambda L, S, width: np.tri(L, S, S - L, dtype=bool)
        & ~np.tri(L, S, S - L - width, dtype=bool),
        "distance": lambda L, S, width: (lambda d: (d >= 0) & (d < width))(
            np.arange(L)[:, None] + S - L - np.arange(S)
        ),
        "a loop": lambda L, S, width: [[0 <= i + S - L - j < width for j in range(S)] for i in range(L)],
        **usual_forms(window_mask),
    },
    hints=(
        "Begin with the causal mask, and hide what is too far back.",
        "Let distance = query_place - key_place. The causal mask asks for distance >= 0.",
        "The window asks for distance < width as well: itself has distance 0.",
    ),
    well_done="Code that skips what a window hides costs L times width in place of L times S: lesson 12.",
)  # fmt: skip


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


TEST_PADDING = Exercise(
    id="04.test_padding",
    patient=_patient,
    signature="is_padding_safe(attend)",
    solution=is_padding_safe,
    probes=_attenders,
    mistakes=(
        Mistake(
            "cannot_fail",
            "It accepts every right version. But it accepts the wrong ones too: change what stands in the"
            " padding (in a copy of x, and by a large amount), and compare the outputs of the real tokens"
            " before and after.",
            function=lambda attend: True,
        ),
        Mistake(
            "always_false",
            "It rejects every wrong version. But it rejects right ones too. Outputs AT padded places may "
            "change, nobody uses "
            "them: compare out[keep] alone.",
            function=lambda attend: False,
        ),
        Mistake(
            "all_rows",
            "Changing the padding and comparing is right. But you compare the padded rows too, and nobody "
            "uses those: "
            "compare out[keep] alone.",
            function=_compare,
        ),
        Mistake(
            "nan_padding",
            "Rubbish in the padding, and only the real tokens compared: good. But NaN or inf comes "
            "through a weight of 0 (0 * NaN is NaN), so right versions fail: use large finite numbers.",
            function=lambda attend: _compare(attend, rows=slice(3), change=np.nan),
        ),
        Mistake(
            "last_place_only",
            "Changing the padding and comparing is right. But you change only its last place; a version "
            "that lets one place too many in gets through. Change all of it.",
            function=lambda attend: _compare(attend, rows=slice(3), places=slice(4, None)),
        ),
        Mistake(
            "first_place_only",
            "Changing the padding and comparing is right. But you change only its first place; a version "
            "that lets another one in gets through. Change all of it.",
            function=lambda attend: _compare(attend, rows=slice(3), places=slice(3, 4)),
        ),
        Mistake(
            "last_row",
            "Changing the padding and comparing is right. But you look at the last real token alone, and "
            "a leak can sit in any: compare all real tokens.",
            function=lambda attend: _compare(attend, rows=2),
        ),
        Mistake(
            "first_row",
            "Changing the padding and comparing is right. But you look at the first token alone, and a leak "
            "can sit in any: "
            "compare all real tokens.",
            function=lambda attend: _compare(attend, rows=0),
        ),
        Mistake(
            "inverted",
            "It tells right from wrong perfectly. But it answers the other way round: True must mean 'safe'.",
            function=lambda attend: not is_padding_safe(attend),
        ),
    ),
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

EXERCISES = (CAUSAL, PADDING, COMBINE, TEST_PADDING, WINDOW)
