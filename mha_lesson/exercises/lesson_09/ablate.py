"""Exercise 09.ablate."""

import numpy as np

from mha_lesson.exercises.engine import Exercise, Mistakes, Probe
from mha_lesson.exercises.engine.probes import usual_forms, wave
from mha_lesson.steps.heads import merge_heads, output_projection
from mha_lesson.steps.inspection import ablate_heads
from mha_lesson.steps.projections import project


def _rows(off, d_head):
    """The rows of w_o that belong to these heads."""
    return [h * d_head + i for h in off for i in range(d_head)]


def _with_columns_off(heads, w_o, b_o, off):
    w_o = w_o.copy()
    w_o[:, [c for c in _rows(off, heads.shape[2]) if c < w_o.shape[1]]] = 0
    return merge_heads(heads) @ w_o + b_o


def _with_outputs_off(heads, w_o, b_o, off):
    out = merge_heads(heads) @ w_o + b_o
    out[:, [c for c in _rows(off, heads.shape[2]) if c < w_o.shape[1]]] = 0
    return out


def _with_rows_shifted(heads, w_o, b_o, off):
    left = merge_heads(np.delete(heads, off, axis=0))
    return left @ w_o[: left.shape[1]] + b_o


def _with_means(heads, w_o, b_o, off):
    heads = heads.copy()
    heads[off] = heads[off].mean(axis=1, keepdims=True)
    return merge_heads(heads) @ w_o + b_o


def _with_features_off(heads, w_o, b_o, off):
    c = merge_heads(heads)
    c[:, off] = 0
    return c @ w_o + b_o


def _with_first_rows(heads, w_o, b_o, off):
    return sum(o @ w_o[: heads.shape[-1]] for h, o in enumerate(heads) if h not in off) + b_o


def _with_filled(fill):
    """What `fill` makes of the heads and of the list off stands in for the heads that are off."""

    def ablate(heads, w_o, b_o, off):
        kept = heads.copy()
        if len(off):
            kept[off] = fill(heads, off)
        return merge_heads(kept) @ w_o + b_o

    return ablate


def _head_by_head(heads, w_o, b_o, off):
    d = heads.shape[-1]
    parts = [o @ w_o[h * d : (h + 1) * d] for h, o in enumerate(heads) if h not in off]
    return sum(parts) + b_o


mistake = Mistakes()


mistake.edit(
    "no_bias",
    """The right heads are off. But the bias b_o is gone too: it belongs to no head, so it stays.""",
    old="output_projection(merge_heads(kept), w_o, b_o)",
    new="output_projection(merge_heads(kept), w_o)",
)

mistake.edit(
    "scaled_up",
    """The right heads are off. But you made the others larger to make up for it (as dropout does in training); switched
    off means missing, nothing else changes.""",
    old="kept[off] = 0",
    new="kept[off] = 0; kept = kept * (len(kept) / (len(kept) - len(off)))",
)


@mistake
def output_scaled_up(heads, w_o, b_o, off):
    """The right heads are off. But you scaled the output up to make up for it, bias and all; switched off means
    missing, nothing else changes."""
    return ablate_heads(heads, w_o, b_o, off) * (len(heads) / (len(heads) - len(off)))


mistake.function(
    "outputs_off",
    """Features are cut into heads in the right way. But you set outputs to 0 after W_O, and W_O has mixed the heads by
    then: switch a head off before it.""",
    _with_outputs_off,
)

mistake.function(
    "columns_off",
    """A part of W_O is set to 0, a good way. But its columns are outputs, and they hold all heads; a head owns rows:
    w_o[h * D : (h + 1) * D].""",
    _with_columns_off,
)

mistake.edit(
    "only_these",
    """Heads are switched, and the bias is there. But it is the other way round: the heads in off are the ones that must
    be silent.""",
    old="kept[off] = 0",
    new="kept[[h for h in range(len(kept)) if h not in off]] = 0",
)

mistake.edit(
    "nothing_off",
    """This is the layer's whole output, and right. But off has no effect: set these heads to 0 first.""",
    old="kept[off] = 0",
    new="pass",
)

mistake.edit(
    "no_projection",
    """The right heads are silent. But the output projection is missing: @ w_o + b_o.""",
    old="output_projection(merge_heads(kept), w_o, b_o)",
    new="merge_heads(kept)",
)

mistake.edit(
    "interleaved",
    """The right heads are silent. But the features are shuffled: those of one head lie side by side, so swap heads and
    tokens, then flatten (merge of lesson 06).""",
    old="merge_heads(kept)",
    new="kept.transpose(1, 2, 0).reshape(kept.shape[1], -1)",
)

mistake.edit(
    "one_reshape",
    """The right heads are silent. But they are joined by a reshape alone, which mixes tokens: swap heads and tokens
    first (merge of lesson 06).""",
    old="merge_heads(kept)",
    new="kept.reshape(kept.shape[1], -1)",
)

mistake.function(
    "rows_shifted",
    """The right heads are left. But each met the rows of another in W_O: with a head removed the others move up. Set it
    to 0 instead, or remove its rows of w_o too.""",
    _with_rows_shifted,
)

mistake.function(
    "mean_instead",
    """The right heads are changed. But you put their mean over the tokens in place (mean ablation, a good experiment
    too); here they are set to 0.""",
    _with_means,
)

mistake.edit(
    "tokens_off",
    """Numbers are set to 0 before W_O, good. But off numbers the heads, the first axis; you silenced tokens.""",
    old="kept[off] = 0",
    new="kept[:, off] = 0",
)

mistake.edit(
    "counted_from_one",
    """The steps are right. But the heads beside those in off are silent: heads count from 0.""",
    old="kept[off] = 0",
    new="kept[[h - 1 for h in off]] = 0",
)

mistake.edit(
    "only_one_off",
    """Right where one head is off. But of several only one is silent: copy heads once before the loop, and let `return`
    stand behind it.""",
    old="kept[off] = 0",
    new="kept[off[-1:]] = 0",
)


@mistake
def only_the_last_off(heads, w_o, b_o, off):
    """Right where one head is off. But only the one named last is silent: copy heads once, before the loop."""
    return ablate_heads(heads, w_o, b_o, off[-1:])


@mistake
def bias_for_each_head(heads, w_o, b_o, off):
    """The sum over the heads that are left is right. But each brings the bias with it: add b_o once, at the end."""
    return ablate_heads(heads, w_o, b_o, off) + (len(heads) - len(off) - 1) * b_o


@mistake
def bias_in_parts(heads, w_o, b_o, off):
    """The sum over the heads that are left is right. But you took a part of the bias away with each head; it belongs to
    none, so the whole of b_o stays."""
    return ablate_heads(heads, w_o, b_o, off) - len(off) / len(heads) * b_o


mistake.function(
    "features_off",
    """Numbers are set to 0 between heads and W_O, a good place. But a column of the merged heads is one feature; head h
    owns D of them, h * D to (h + 1) * D. Easier before the merge: kept[off] = 0.""",
    _with_features_off,
)

mistake.edit(
    "minus_infinity",
    """The right heads are meant. But -inf is for scores, where softmax makes 0 of it; what a head found goes into a
    sum, and there 0 is nothing.""",
    old="kept[off] = 0",
    new="kept[off] = -np.inf",
)


@mistake
def off_0_alone(heads, w_o, b_o, off):
    """Right where one head is off. But off is a list of any length, and off[0] is its first number (an empty list has
    none): kept[off] = 0 takes them all."""
    return ablate_heads(heads, w_o, b_o, [off[0]])


mistake.edit(
    "w_o_transposed",
    """The right heads are silent. But W_O is transposed: it is stored (in, out) here, so @ w_o, without .T.""",
    old="w_o, b_o)",
    new="w_o.T, b_o)",
)

mistake.function(
    "mean_of_the_heads",
    """The right heads are changed. But the mean over the heads says something still; switched off means 0.""",
    _with_filled(lambda heads, off: heads.mean(axis=0)),
)

mistake.function(
    "mean_of_the_others",
    """The right heads are changed. But the mean of the others in their place says something still; switched off means
    0.""",
    _with_filled(lambda heads, off: np.delete(heads, off, axis=0).mean(axis=0)),
)

mistake.function(
    "first_rows_for_all",
    """The heads that are left are added up, and the bias comes once. But all of them meet w_o[:D], the rows of head 0;
    head h owns w_o[h * D : (h + 1) * D].""",
    _with_first_rows,
)


ABLATE = Exercise(
    id="09.ablate",
    signature="ablate(heads, w_o, b_o, off)",
    solution=ablate_heads,
    helpers=(merge_heads, output_projection, project),
    probes=lambda: [
        Probe((np.array([[[1.0], [2], [3]], [[10], [20], [40]]]), np.array([[1.0, 2], [3, 5]]),
               np.array([100.0, 200]), [0]), "2 heads of width 1, 3 tokens, off = [0]"),
        Probe((wave(3, 5, 2), wave(6, 7, step=0.4), wave(7, step=1.3), [2, 0]),
              "3 heads of width 2, 5 tokens, W_O (6, 7), off = [2, 0]"),
        Probe((wave(5, 7, 3), wave(15, 15, step=0.45), wave(15, step=1.1), []), "5 heads of width 3, none off"),
        Probe((wave(5, 2, 3), wave(15, 15, step=0.85), wave(15, step=0.9), [3, 1]), "5 heads of width 3, off = [3, 1]"),
        Probe((wave(2, 5, 3, dtype=np.float32), wave(6, 6, step=0.4, dtype=np.float32), wave(6, dtype=np.float32), [1]),
              "2 heads of width 3, float32, off = [1]"),
    ],
    mistakes=mistake.all,
    forms={
        "head by head": _head_by_head,
        "rows of W_O": lambda heads, w_o, b_o, off: (
            merge_heads(heads) @ np.where(np.isin(np.arange(len(w_o)) // heads.shape[2], off)[:, None], 0, w_o) + b_o
        ),
        "einsum with gates": lambda heads, w_o, b_o, off: np.einsum(
            "hld,hde,h->le", heads, w_o.reshape(len(heads), -1, w_o.shape[1]), ~np.isin(np.arange(len(heads)), off)
        ) + b_o,
        "all less the off ones": lambda heads, w_o, b_o, off: merge_heads(heads) @ w_o + b_o - sum(
            heads[h] @ w_o[h * heads.shape[2] : (h + 1) * heads.shape[2]] for h in off
        ),
        **usual_forms(ablate_heads),
    },
    hints=(
        "The output is a sum: head 0 through its rows of W_O, head 1 through its own, ..., and the bias.",
        "First a copy, so that the caller's array stays as it is: kept = heads.copy(). In it set what the heads in off "
        "found to 0: kept[off] = 0.",
        "Then as in lesson 06: lay the heads side by side, (L, H * D), and project with @ w_o + b_o.",
        "kept.transpose(1, 0, 2).reshape(L, H * D) @ w_o + b_o",
    ),
    well_done="Now you can ask what a head is good for, not only where it looks.",
)  # fmt: skip
