"""Exercise 06.mha."""

import numpy as np

from mha_lesson.attention import multi_head_attention, scaled_dot_product_attention
from mha_lesson.exercises.engine import Exercise, Mistakes, Probe
from mha_lesson.exercises.engine.probes import usual_forms, wave
from mha_lesson.steps.heads import merge_heads, split_heads
from mha_lesson.steps.masks import causal_mask, combine_masks, padding_mask
from mha_lesson.steps.softmax import masked_softmax


def _params(d_model: int, step: float = 0.37, dtype=np.float64) -> dict:
    names = ("w_q", "w_k", "w_v", "w_o")
    weights = {n: wave(d_model, d_model, step=step + i / 7, size=0.6, dtype=dtype) for i, n in enumerate(names)}
    biases = {f"b_{n[2]}": wave(d_model, step=step + i / 5, size=0.3, dtype=dtype) for i, n in enumerate(names)}
    return {**weights, **biases}


def _attend_with(x, params, num_heads, keep, weigh):
    """Multi-head attention in which `weigh(scores, keep, d_model)` makes the weights."""
    q, k, v = (split_heads(x @ params[f"w_{n}"] + params[f"b_{n}"], num_heads) for n in "qkv")
    keep = True if keep is None else keep
    weights = weigh(q @ k.swapaxes(-1, -2), keep, q.shape[-1])
    return merge_heads(weights @ v) @ params["w_o"] + params["b_o"]


def _by_head_loop(x, params, num_heads, keep):
    d_head = x.shape[-1] // num_heads
    out = params["b_o"].copy()
    for h in range(num_heads):
        part = slice(h * d_head, (h + 1) * d_head)
        q, k, v = (x @ params[f"w_{n}"][:, part] + params[f"b_{n}"][part] for n in "qkv")
        mask = None if keep is None else np.broadcast_to(keep, (len(x), num_heads, x.shape[1], x.shape[1]))[:, h]
        out = out + scaled_dot_product_attention(q, k, v, mask)[0] @ params["w_o"][part]
    return out


def _by_sample_loop(x, params, num_heads, keep):
    keep = np.ones((1, 1, 1, 1), bool) if keep is None else keep
    keep = np.broadcast_to(keep, (len(x), 1, x.shape[1], x.shape[1]))
    return np.stack([multi_head_attention(s, params, num_heads, k) for s, k in zip(x, keep, strict=True)])


mistake = Mistakes()


mistake.edit(
    "no_output_projection",
    """The heads attend and are joined. But the last step is missing: context @ w_o + b_o.""",
    old='return context @ params["w_o"] + params["b_o"]',
    new="return context",
)

mistake.edit(
    "no_output_bias",
    """All is right up to the very end. But there the bias b_o is missing.""",
    old='context @ params["w_o"] + params["b_o"]',
    new='context @ params["w_o"]',
)

mistake.edit(
    "merge_without_swap",
    """Projection, heads and attention are right. But the heads were joined by a reshape alone: swap heads and tokens
    first.""",
    old="merge_heads(output)",
    new="output.reshape(x.shape)",
)


@mistake
def split_without_swap(x, params, num_heads, keep):
    """The steps stand in the right order. But q, k and v were split by one reshape, which mixes tokens and lets the
    future through a correct mask: cut the features, then swap axes."""
    return _reshaped(x, params, num_heads, keep)


@mistake
def both_reshapes(x, params, num_heads, keep):
    """The steps stand in the right order. But heads are split by one reshape and joined by one: each undoes the other's
    shape, so merge(split(x)) is x again, and yet tokens are mixed in between. Swap axes both times."""
    return _reshaped(x, params, num_heads, keep, join=True)


mistake.edit(
    "ignores_mask",
    """Right without a mask. But the mask has no effect: hand keep to the attention of every head.""",
    old="key, value, keep)",
    new="key, value)",
)


@mistake
def none_hides_all(x, params, num_heads, keep):
    """Right with a mask. But keep may be None, and np.where takes None for False: then nobody may look. Write keep =
    True if keep is None else keep."""
    return multi_head_attention(x, params, num_heads, np.zeros((1, 1), bool) if keep is None else keep)


@mistake
def mask_inverted(x, params, num_heads, keep):
    """Right without a mask. But the mask is used the wrong way round: True in keep means 'may attend'."""
    return multi_head_attention(x, params, num_heads, None if keep is None else ~keep)


@mistake
def no_scale(x, params, num_heads, keep):
    """Heads and masks are right. But the scores are not divided by sqrt(d_head)."""
    return _attend_with(x, params, num_heads, keep, lambda s, m, d: masked_softmax(s, m))


@mistake
def scaled_twice(x, params, num_heads, keep):
    """Heads and masks are right. But the scores are divided by d_head, that is by sqrt(d_head) twice. (If you call
    attention_scores: it divides already.)"""
    return _attend_with(x, params, num_heads, keep, lambda s, m, d: masked_softmax(s / d, m))


@mistake
def weights_transposed(x, params, num_heads, keep):
    """The steps are right. But you multiply by W.T everywhere (nn.Linear's layout); here the matrices are (in, out): x
    @ w."""
    return multi_head_attention(x, {n: p.T for n, p in params.items()}, num_heads, keep)


@mistake
def output_transposed(x, params, num_heads, keep):
    """All is right up to the last matrix. But you multiply by w_o.T (nn.Linear's layout); here it is (in, out): context
    @ w_o."""
    return multi_head_attention(x, {**params, "w_o": params["w_o"].T}, num_heads, keep)


@mistake
def mask_after_softmax(x, params, num_heads, keep):
    """Heads and scale are right. But the mask is multiplied in after the softmax, so rows no longer sum to 1: mask the
    scores before."""
    return _attend_with(x, params, num_heads, keep, lambda s, m, d: masked_softmax(s / np.sqrt(d), True) * m)


@mistake
def empty_row_uniform(x, params, num_heads, keep):
    """All rows with at least one key are right. But an empty sequence attends evenly to its padding, as it does with a
    large finite number in place of -inf: its weights should be 0."""
    return _attend_with(
        x, params, num_heads, keep, lambda s, m, d: masked_softmax(np.where(m, s / np.sqrt(d), -1e9), True)
    )


@mistake
def scaled_by_d_model(x, params, num_heads, keep):
    """Heads and masks are right. But the scores are divided by sqrt(d_model); the width of one head counts, d_model /
    num_heads."""
    return _attend_with(x, params, num_heads, keep, lambda s, m, d: masked_softmax(s / np.sqrt(x.shape[-1]), m))


@mistake
def softmax_over_queries(x, params, num_heads, keep):
    """Heads and scale are right. But the softmax runs over the queries; each query shares out over the keys, the last
    axis."""
    return _attend_with(
        x,
        params,
        num_heads,
        keep,
        lambda s, m, d: masked_softmax(
            (s / np.sqrt(d)).swapaxes(-1, -2), np.broadcast_to(m, s.shape).swapaxes(-1, -2)
        ).swapaxes(-1, -2),
    )


@mistake
def one_head(x, params, num_heads, keep):
    """This is right attention with one head of full width. Split q, k and v into num_heads parts, and let each
    attend."""
    return multi_head_attention(x, params, 1, keep)


mistake.edit(
    "key_for_value",
    """Scores and weights are right. But the keys are mixed in place of the values.""",
    old="(query, key, value, keep)",
    new="(query, key, key, keep)",
)

mistake.edit(
    "roles_swapped",
    """All parts are there. But query and key changed places: the first is who looks, the second who is found.""",
    old="(query, key, value, keep)",
    new="(key, query, value, keep)",
)


@mistake
def no_input_biases(x, params, num_heads, keep):
    """The matrices are used right. But the biases b_q, b_k, b_v are missing."""
    return multi_head_attention(
        x, {n: p * 0 if n in ("b_q", "b_k", "b_v") else p for n, p in params.items()}, num_heads, keep
    )


mistake.edit(
    "values_not_projected",
    """Queries, keys and weights are right. But the values are the raw input; they need w_v and b_v.""",
    old='split_heads(x @ params["w_v"] + params["b_v"], num_heads)',
    new="split_heads(x, num_heads)",
)

mistake.edit(
    "residual",
    """This is the layer with its residual connection, right in a transformer block. Here the layer alone is asked
    for.""",
    old='return context @ params["w_o"] + params["b_o"]',
    new='return x + context @ params["w_o"] + params["b_o"]',
)


MHA = Exercise(
    id="06.mha",
    signature="mha(x, params, num_heads, keep)",
    solution=multi_head_attention,
    probes=lambda: [
        Probe((wave(2, 3, 10), _params(10), 5, combine_masks(causal_mask(3, 3), padding_mask([3, 2], 3))),
              "B 2, L 3, d_model 10, 5 heads, causal and padding"),
        Probe((wave(3, 5, 14), _params(14), 2, causal_mask(5, 5)), "B 3, L 5, d_model 14, 2 heads, causal"),
        Probe((wave(3, 2, 21), _params(21), 7, None), "no mask, 7 heads"),
        Probe((wave(2, 5, 6, dtype=np.float32), _params(6, dtype=np.float32), 3,
               padding_mask([0, 4], 5)[:, None, None]),
              "an empty sequence, float32"),
    ],
    mistakes=mistake.all,
    forms={
        "a loop over heads": _by_head_loop,
        "a loop over samples": _by_sample_loop,
        "einsum": lambda x, params, num_heads, keep: _attend_with(
            x, params, num_heads, keep, lambda s, m, d: masked_softmax(np.einsum("...,->...", s, d**-0.5), m)
        ),
        **usual_forms(multi_head_attention),
    },
    hints=(
        "Put your own functions in a row: project, split, attend, merge, project.",
        "q = split(x @ params['w_q'] + params['b_q'], num_heads), and the same for k and v.",
        "Scores, mask and softmax work on all heads at once; keep broadcasts to (B, H, L, S). keep may be None: then "
        "all is allowed.",
        "The end: merge(weights @ v) @ params['w_o'] + params['b_o'].",
    ),
    well_done="Multi-head attention, from start to end, and yours. A wrong key bias, by the way, nobody could "
    "notice: lesson 05.",
)  # fmt: skip


def _reshaped(x, params, num_heads, keep, join=False):
    """Heads split by one reshape; with `join` they are joined by one as well."""

    def cut(a):
        return a.reshape(len(x), num_heads, x.shape[1], -1)

    q, k, v = (cut(x @ params[f"w_{n}"] + params[f"b_{n}"]) for n in "qkv")
    heads, _ = scaled_dot_product_attention(q, k, v, keep)
    context = heads.reshape(x.shape) if join else merge_heads(heads)
    return context @ params["w_o"] + params["b_o"]
