"""Exercises of lesson 06: heads, and the whole layer."""

import numpy as np

from mha_lesson.attention import multi_head_attention, scaled_dot_product_attention
from mha_lesson.exercises.engine import Exercise, Mistake, Probe
from mha_lesson.exercises.probes import usual_forms, wave
from mha_lesson.steps.heads import merge_heads, output_projection, split_heads
from mha_lesson.steps.masks import causal_mask, combine_masks, padding_mask
from mha_lesson.steps.projections import project
from mha_lesson.steps.softmax import masked_softmax

SPLIT = Exercise(
    id="06.split",
    signature="split(x, h)",
    solution=split_heads,
    probes=lambda: [
        Probe((np.arange(1.0, 13).reshape(1, 3, 4), 2), "x = 1..12 as (1, 3, 4), 2 heads"),
        Probe((wave(2, 5, 21), 3), "B 2, L 5, E 21, 3 heads"),
        Probe((wave(3, 7, 10, dtype=np.float32), 5), "B 3, L 7, E 10, 5 heads, float32"),
    ],
    mistakes=(
        Mistake(
            "one_reshape",
            "The shape is right. But tokens got mixed: split the features first, (B, L, h, d), then swap "
            "axes 1 and 2.",
            function=lambda x, h: x.reshape(x.shape[0], h, x.shape[1], x.shape[2] // h),
        ),
        Mistake(
            "every_hth_feature",
            "Tokens stay apart, and the shape is right. Consistent, but another layout: head 0 should hold "
            "the first d features, "
            "not every h-th.",
            function=lambda x, h: x.reshape(*x.shape[:2], x.shape[2] // h, h).transpose(0, 3, 1, 2),
        ),
        Mistake(
            "no_swap",
            "The features are cut right. But the heads must stand before the tokens: swap axes 1 and 2, so "
            "that each head is a "
            "matrix (L, d).",
            "return x.swapaxes(-3, -2)", "return x",
        ),
        Mistake(
            "width_for_heads",
            "The two steps are right. But h is the number of heads, not their width: reshape to (B, L, h, "
            "d_model // h).",
            "num_heads, d_model // num_heads)", "d_model // num_heads, num_heads)",
        ),
        Mistake(
            "heads_first",
            "Each head holds the right numbers. But the heads stand before the batch; the order is (B, h, L, "
            "d).",
            "x.swapaxes(-3, -2)", "np.moveaxis(x, -2, 0)",
        ),
        Mistake(
            "heads_reversed",
            "The two steps are right. But the last head comes first: head 0 holds the first d features.",
            "x.swapaxes(-3, -2)", "x[..., ::-1, :].swapaxes(-3, -2)",
        ),
        Mistake(
            "token_feature_swapped",
            "Each head holds the right numbers. But each is turned on its side: (B, h, L, d), tokens before "
            "features.",
            "x.swapaxes(-3, -2)", "np.moveaxis(x, -3, -1)",
        ),
        Mistake(
            "tokens_split",
            "The shape fits, but you cut the tokens into groups. Heads share the features: every head sees "
            "every token.",
            function=lambda x, h: x.transpose(0, 2, 1).reshape(x.shape[0], h, x.shape[1], -1),
        ),
    ),
    forms={
        "split and stack": lambda x, h: np.stack(np.split(x, h, -1), 1),
        "slices": lambda x, h: (
            lambda d: np.stack([x[..., i * d : (i + 1) * d] for i in range(h)], 1)
        )(x.shape[-1] // h),
        "transpose": lambda x, h: x.reshape(*x.shape[:2], h, -1).transpose(0, 2, 1, 3),
        **usual_forms(split_heads),
    },
    hints=(
        "Two steps: cut the last axis into (h, d), then move the heads before the tokens.",
        "B, L, E = x.shape; x.reshape(B, L, h, E // h) cuts the features of each token.",
        "Swap axes 1 and 2: .transpose(0, 2, 1, 3) or .swapaxes(1, 2).",
    ),
    well_done="Head 0 holds the first d features of every token.",
)  # fmt: skip

MERGE = Exercise(
    id="06.merge",
    signature="merge(o)",
    solution=merge_heads,
    probes=lambda: [
        Probe((np.array([[[[1.0, 2], [3, 4]], [[5, 6], [7, 8]]]]),), "2 heads, 2 tokens, width 2"),
        Probe((wave(2, 3, 5, 7),), "B 2, h 3, L 5, d 7"),
        Probe((wave(3, 5, 2, 2, dtype=np.float32),), "B 3, h 5, L 2, d 2, float32"),
    ],
    mistakes=(
        Mistake(
            "one_reshape",
            "The shape is right. But token 0 got head 0 of two tokens. Swap heads and tokens back before "
            "flattening.",
            "o = o.swapaxes(-3, -2)", "o = o",
        ),
        Mistake(
            "averaged",
            "Tokens stay apart. But heads are laid side by side, not averaged; averaging throws away what "
            "the heads found.",
            function=lambda o: o.mean(1),
        ),
        Mistake(
            "summed",
            "Tokens stay apart. But heads are laid side by side, not added; W_O will mix them.",
            function=lambda o: o.sum(1),
        ),
        Mistake(
            "interleaved",
            "Each token has all its numbers. But the heads are shuffled into each other: head 0 must keep "
            "its d features side by side.",
            function=lambda o: o.transpose(0, 2, 3, 1).reshape(o.shape[0], o.shape[2], -1),
        ),
        Mistake(
            "first_head",
            "Tokens stay apart. But only head 0 is there: lay all heads side by side.",
            function=lambda o: o[:, 0],
        ),
        Mistake(
            "not_flattened",
            "The axes stand in the right order. But heads and features are still two axes: flatten them, (B, "
            "L, h * d).",
            "return o.reshape(*batch, L, num_heads * d_head)", "return o",
        ),
        Mistake(
            "heads_reversed",
            "Everything lies side by side. But the last head comes first; keep their order.",
            function=lambda o: merge_heads(o[:, ::-1]),
        ),
    ),
    forms={
        "concatenate": lambda o: np.concatenate([o[:, i] for i in range(o.shape[1])], -1),
        "transpose": lambda o: o.transpose(0, 2, 1, 3).reshape(o.shape[0], o.shape[2], -1),
        "hstack per sample": lambda o: np.stack([np.hstack(list(sample)) for sample in o]),
        **usual_forms(merge_heads),
    },
    hints=(
        "The way back from split: the same two steps in the opposite order.",
        "First swap heads and tokens, (B, L, h, d).",
        "Then flatten the last two axes: .reshape(B, L, h * d).",
    ),
    well_done="merge(split(x, h)) is x again.",
)  # fmt: skip

OUTPUT = Exercise(
    id="06.output",
    signature="output(c, w_o, b_o)",
    solution=output_projection,
    helpers=(project,),
    probes=lambda: [
        Probe((np.eye(2)[None], np.array([[1.0, 2], [3, 4]]), np.array([10.0, 20])), "c = the identity, so W_O shows"),
        Probe((wave(2, 3, 5), wave(5, 5, step=0.4), wave(5, step=1.3)), "B 2, L 3, E 5"),
        Probe((wave(3, 2, 5, dtype=np.float32), wave(5, 7, step=0.4, dtype=np.float32), wave(7, dtype=np.float32)),
              "W_O (5, 7), float32"),
    ],
    mistakes=(
        Mistake(
            "skipped",
            "The heads are joined. But you return them as they are. The last linear map W_O is what lets the "
            "heads mix.",
            "project(c, w_o, b_o)", "c",
        ),
        Mistake(
            "transposed",
            "Product and bias are right. But you used w_o.T (nn.Linear's layout). Here w_o is (in, out).",
            function=lambda c, w_o, b_o: c @ w_o.T + b_o,
        ),
        Mistake(
            "transposed_no_bias",
            "The right arrays meet. But you used w_o.T (nn.Linear's layout), here w_o is (in, out); and "
            "the bias b_o is missing.",
            function=lambda c, w_o, b_o: c @ w_o.T,
        ),
        Mistake(
            "no_bias",
            "The product is right. But the bias b_o is missing: add it.",
            "project(c, w_o, b_o)", "project(c, w_o)",
        ),
        Mistake(
            "bias_first",
            "Product and bias are both there. But the bias comes after the product: c @ w_o + b_o.",
            function=lambda c, w_o, b_o: (c + b_o[: c.shape[-1]]) @ w_o,
        ),
        Mistake(
            "residual",
            "This is the layer with its residual connection, right in a transformer block. Here c @ w_o + "
            "b_o alone is asked for.",
            "project(c, w_o, b_o)", "c + project(c, w_o, b_o)",
        ),
        Mistake(
            "elementwise",
            "The right arrays meet. But * multiplies place by place; a linear map is the matrix product @.",
            function=lambda c, w_o, b_o: c * w_o.diagonal() + b_o,
        ),
        Mistake(
            "bias_subtracted",
            "The product is right. But the bias is subtracted; it is added.",
            function=lambda c, w_o, b_o: c @ w_o - b_o,
        ),
    ),
    forms={
        "einsum": lambda c, w_o, b_o: np.einsum("bli,io->blo", c, w_o) + b_o,
        "a column of ones": lambda c, w_o, b_o: (
            np.concatenate([c, np.ones_like(c[..., :1])], -1) @ np.vstack([w_o, b_o])
        ),
        "token by token": lambda c, w_o, b_o: [[w_o.T @ token + b_o for token in row] for row in c],
        **usual_forms(output_projection),
    },
    hints=(
        "One matrix product and one addition.",
        "w_o is (in, out), so c stands on the left: c @ w_o.",
        "return c @ w_o + b_o",
    ),
    well_done="Now every output feature can use every head.",
)  # fmt: skip


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
    mistakes=(
        Mistake(
            "no_output_projection",
            "The heads attend and are joined. But the last step is missing: context @ w_o + b_o.",
            'return context @ params["w_o"] + params["b_o"]', "return context",
        ),
        Mistake(
            "no_output_bias",
            "All is right up to the very end. But there the bias b_o is missing.",
            'context @ params["w_o"] + params["b_o"]', 'context @ params["w_o"]',
        ),
        Mistake(
            "merge_without_swap",
            "Projection, heads and attention are right. But the heads were joined by a reshape alone: swap "
            "heads and tokens first.",
            "merge_heads(output)", "output.reshape(x.shape)",
        ),
        Mistake(
            "split_without_swap",
            "The steps stand in the right order. But q, k and v were split by one reshape, which mixes "
            "tokens and lets the "
            "future through a correct mask: cut the features, then swap axes.",
            function=lambda x, params, num_heads, keep: _reshaped(x, params, num_heads, keep),
        ),
        Mistake(
            "both_reshapes",
            "The steps stand in the right order. But heads are split by one reshape and joined by one: "
            "each undoes the other's shape, so merge(split(x)) is x again, and yet tokens are mixed in "
            "between. Swap axes both times.",
            function=lambda x, params, num_heads, keep: _reshaped(x, params, num_heads, keep, join=True),
        ),
        Mistake(
            "ignores_mask",
            "Right without a mask. But the mask has no effect: hand keep to the attention of every head.",
            "key, value, keep)", "key, value)",
        ),
        Mistake(
            "none_hides_all",
            "Right with a mask. But keep may be None, and np.where takes None for False: then nobody may "
            "look. Write keep = True if keep is None else keep.",
            function=lambda x, params, num_heads, keep: multi_head_attention(
                x, params, num_heads, np.zeros((1, 1), bool) if keep is None else keep
            ),
        ),
        Mistake(
            "mask_inverted",
            "Right without a mask. But the mask is used the wrong way round: True in keep means 'may "
            "attend'.",
            function=lambda x, params, num_heads, keep: multi_head_attention(
                x, params, num_heads, None if keep is None else ~keep
            ),
        ),
        Mistake(
            "no_scale",
            "Heads and masks are right. But the scores are not divided by sqrt(d_head).",
            function=lambda x, params, num_heads, keep: _attend_with(
                x, params, num_heads, keep, lambda s, m, d: masked_softmax(s, m)
            ),
        ),
        Mistake(
            "scaled_twice",
            "Heads and masks are right. But the scores are divided by d_head, that is by sqrt(d_head) "
            "twice. (If you call attention_scores: it divides already.)",
            function=lambda x, params, num_heads, keep: _attend_with(
                x, params, num_heads, keep, lambda s, m, d: masked_softmax(s / d, m)
            ),
        ),
        Mistake(
            "weights_transposed",
            "The steps are right. But you multiply by W.T everywhere (nn.Linear's layout); here the "
            "matrices are (in, out): x @ w.",
            function=lambda x, params, num_heads, keep: multi_head_attention(
                x, {n: p.T for n, p in params.items()}, num_heads, keep
            ),
        ),
        Mistake(
            "output_transposed",
            "All is right up to the last matrix. But you multiply by w_o.T (nn.Linear's layout); here it "
            "is (in, out): context @ w_o.",
            function=lambda x, params, num_heads, keep: multi_head_attention(
                x, {**params, "w_o": params["w_o"].T}, num_heads, keep
            ),
        ),
        Mistake(
            "mask_after_softmax",
            "Heads and scale are right. But the mask is multiplied in after the softmax, so rows no "
            "longer sum to 1: mask the scores before.",
            function=lambda x, params, num_heads, keep: _attend_with(
                x, params, num_heads, keep, lambda s, m, d: masked_softmax(s / np.sqrt(d), True) * m
            ),
        ),
        Mistake(
            "empty_row_uniform",
            "All rows with at least one key are right. But an empty sequence attends evenly to its "
            "padding, as it does with a large finite number in place of -inf: its weights should be 0.",
            function=lambda x, params, num_heads, keep: _attend_with(
                x, params, num_heads, keep, lambda s, m, d: masked_softmax(np.where(m, s / np.sqrt(d), -1e9), True)
            ),
        ),
        Mistake(
            "scaled_by_d_model",
            "Heads and masks are right. But the scores are divided by sqrt(d_model); the width of one head "
            "counts, d_model / num_heads.",
            function=lambda x, params, num_heads, keep: _attend_with(
                x, params, num_heads, keep, lambda s, m, d: masked_softmax(s / np.sqrt(x.shape[-1]), m)
            ),
        ),
        Mistake(
            "softmax_over_queries",
            "Heads and scale are right. But the softmax runs over the queries; each query shares out over "
            "the keys, the last axis.",
            function=lambda x, params, num_heads, keep: _attend_with(
                x, params, num_heads, keep,
                lambda s, m, d: masked_softmax(
                    (s / np.sqrt(d)).swapaxes(-1, -2), np.broadcast_to(m, s.shape).swapaxes(-1, -2)
                ).swapaxes(-1, -2),
            ),
        ),
        Mistake(
            "one_head",
            "This is right attention with one head of full width. Split q, k and v into num_heads parts, and "
            "let each attend.",
            function=lambda x, params, num_heads, keep: multi_head_attention(x, params, 1, keep),
        ),
        Mistake(
            "key_for_value",
            "Scores and weights are right. But the keys are mixed in place of the values.",
            "(query, key, value, keep)", "(query, key, key, keep)",
        ),
        Mistake(
            "roles_swapped",
            "All parts are there. But query and key changed places: the first is who looks, the second who "
            "is found.",
            "(query, key, value, keep)", "(key, query, value, keep)",
        ),
        Mistake(
            "no_input_biases",
            "The matrices are used right. But the biases b_q, b_k, b_v are missing.",
            function=lambda x, params, num_heads, keep: multi_head_attention(
                x, {n: p * 0 if n in ("b_q", "b_k", "b_v") else p for n, p in params.items()}, num_heads, keep
            ),
        ),
        Mistake(
            "values_not_projected",
            "Queries, keys and weights are right. But the values are the raw input; they need w_v and b_v.",
            'split_heads(x @ params["w_v"] + params["b_v"], num_heads)', "split_heads(x, num_heads)",
        ),
        Mistake(
            "residual",
            "This is the layer with its residual connection, right in a transformer block. Here the layer "
            "alone is asked for.",
            'return context @ params["w_o"] + params["b_o"]', 'return x + context @ params["w_o"] + params["b_o"]',
        ),
    ),
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
        "Scores, mask and softmax work on all heads at once; keep broadcasts to (B, H, L, S). keep may be None: "
        "then all is allowed.",
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


EXERCISES = (SPLIT, MERGE, OUTPUT, MHA)
