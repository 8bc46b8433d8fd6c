"""Faults that people really make, each as one edit of one file of the package.

`old` occurs exactly once in the file, and the file with `new` in its place still compiles
(tests/test_mutation.py). None of them has the same outputs as the right code. Left out for that
reason: a wrong or missing bias of the keys, which shifts a whole row of scores and leaves every
weight as it is.
"""

from typing import NamedTuple


class Fault(NamedTuple):
    name: str
    file: str
    old: str
    new: str


def _in(file, *edits):
    return [Fault(name, f"mha_lesson/{file}", old, new) for name, old, new in edits]


FAULTS = [
    *_in(
        "steps/lookup.py",
        ("double_is_square", "x * 2", "x * x"),
        ("soft_lookup_no_max", "np.exp(match - match.max())", "np.exp(match)"),
        ("soft_lookup_not_divided", "    share = share / share.sum()\n", ""),
        ("soft_lookup_match_twice", "share @ values", "(share * match) @ values"),
    ),
    *_in(
        "steps/embeddings.py",
        ("ids_negative_allowed", "ids.min() < 0 or ids.max()", "ids.max()"),
        ("ids_off_by_one", "ids.max() >= len(table)", "ids.max() > len(table)"),
        ("embed_no_factor", " * math.sqrt(d_model)", ""),
        ("embed_inverse_factor", "* math.sqrt(d_model)", "/ math.sqrt(d_model)"),
        ("embed_factor_of_vocabulary", "d_model = table.shape[1]", "d_model = table.shape[0]"),
        (
            "positions_sin_cos_swapped",
            "np.sin(angle[:, 0::2])\n    positions[:, 1::2] = np.cos(",
            "np.cos(angle[:, 0::2])\n    positions[:, 1::2] = np.sin(",
        ),
        ("positions_exponent_doubled", "np.arange(d) // 2", "np.arange(d)"),
        ("positions_other_base", "/ 10000.0 **", "/ 1000.0 **"),
        ("positions_from_one", "np.arange(n)[:, None]", "np.arange(1, n + 1)[:, None]"),
        (
            "positions_on_the_batch_axis",
            "return x + positions[:L]",
            "return x + np.resize(positions, x.shape[::2])[:, None]",
        ),
        ("rotary_sign", "* cos - x[..., 1::2] * sin", "* cos + x[..., 1::2] * sin"),
        ("rotary_backwards", "np.outer(pos, base", "-np.outer(pos, base"),
        ("rotary_other_base", "base: float = 100.0", "base: float = 10000.0"),
        ("rotary_exponent_halved", "np.arange(0, d_head, 2) / d_head", "np.arange(0, d_head, 2) / 2 / d_head"),
    ),
    *_in(
        "steps/projections.py",
        ("weight_transposed", "projected = x @ w ", "projected = x @ w.T "),
        ("bias_missing", "projected if b is None else projected + b", "projected"),
        ("bias_subtracted", "else projected + b", "else projected - b"),
        ("value_by_key_matrix", "project(x, w_v)", "project(x, w_k)"),
        ("query_and_key_swapped", "project(x, w_q), project(x, w_k),", "project(x, w_k), project(x, w_q),"),
    ),
    *_in(
        "steps/scores.py",
        ("no_scale", " / math.sqrt(d_head)", ""),
        ("scale_by_d", "/ math.sqrt(d_head)", "/ d_head"),
        ("scale_by_length", "/ math.sqrt(d_head)", "/ math.sqrt(query.shape[-2])"),
        ("scale_multiplied", "/ math.sqrt(d_head)", "* math.sqrt(d_head)"),
        ("variance_not_scaled", "scaled = raw / math.sqrt(d) ** 2", "scaled = raw / math.sqrt(d)"),
        ("scale_twice", "/ math.sqrt(d_head)", "/ math.sqrt(2 * d_head)"),
    ),
    *_in(
        "steps/masks.py",
        ("causal_reversed", "return key_place <= query_place ", "return key_place >= query_place "),
        ("causal_polarity", "return key_place <= query_place ", "return key_place > query_place "),
        (
            "causal_top_left",
            "np.arange(L)[:, None] + (S - L)  # (L, 1): the",
            "np.arange(L)[:, None]  # (L, 1): the",
        ),
        ("causal_hides_itself", "return key_place <= query_place ", "return key_place < query_place "),
        ("causal_sees_one_ahead", "return key_place <= query_place ", "return key_place <= query_place + 1 "),
        ("window_one_more", "key_place > query_place - width", "key_place >= query_place - width"),
        ("window_one_less", "key_place > query_place - width", "key_place > query_place - width + 1"),
        ("window_sees_the_future", "(key_place <= query_place) & ", ""),
        ("padding_off_by_one", "np.arange(S) < lengths", "np.arange(S) <= lengths"),
        ("padding_polarity", "np.arange(S) < lengths", "np.arange(S) >= lengths"),
        ("combine_with_or", "causal & padding", "causal | padding"),
        ("combine_on_the_head_axis", "causal & padding[:, None, None, :]", "causal & padding[None, :, None, :]"),
        ("three_axes_accepted", "if len(shape) == 4 and keep.ndim == 3:", "if False:"),
        ("float_masks_accepted", "if mask.dtype == bool:\n        return mask\n", "return mask.astype(bool)\n"),
        ("to_torch_mha_polarity", "blocked = ~keep", "blocked = keep"),
        ("to_torch_mha_order", "wanted).reshape(", "wanted).swapaxes(0, 1).reshape("),
        ("from_torch_mha_polarity", "else ~np.asarray(mask)", "else np.asarray(mask)"),
        ("additive_polarity", "return mask == 0", "return mask != 0"),
    ),
    *_in(
        "steps/softmax.py",
        ("softmax_over_queries", "return e / e.sum(axis=-1,", "return e / e.sum(axis=0,"),
        ("softmax_no_max", "np.exp(z - z.max(axis=-1, keepdims=True))", "np.exp(z)"),
        ("softmax_not_divided", "return e / e.sum(axis=-1, keepdims=True)", "return e"),
        ("masked_softmax_over_queries", "total = e.sum(axis=-1,", "total = e.sum(axis=0,"),
        ("masked_softmax_no_max", "e = np.exp(z - peak)", "e = np.exp(z)"),
        (
            "empty_rows_divided",
            "np.divide(e, total, out=np.zeros_like(e), where=total != 0)",
            "e / total",
        ),
        ("empty_rows_peak", "peak = np.where(np.isneginf(peak), 0, peak)", "peak = peak + 0"),
        ("finite_fill", "z = np.where(keep, z, -np.inf)", "z = np.where(keep, z, -1e4)"),
        ("fill_zero", "z = np.where(keep, z, -np.inf)", "z = np.where(keep, z, 0)"),
        ("mask_added", "z = np.where(keep, z, -np.inf)", "z = z + np.where(keep, 0, -np.inf)"),
        ("mask_ignored", "z = np.where(keep, z, -np.inf)", "z = np.where(True, z, -np.inf)"),
        ("mask_polarity", "z = np.where(keep, z, -np.inf)", "z = np.where(keep, -np.inf, z)"),
    ),
    *_in(
        "steps/heads.py",
        (
            "split_by_reshape",
            "x.reshape(*batch, L, num_heads, d_model // num_heads)  # (..., L, H, D)\n    return x.swapaxes(-3, -2)",
            "x.reshape(*batch, num_heads, L, d_model // num_heads)\n    return x",
        ),
        (
            "split_every_other_feature",
            "x.reshape(*batch, L, num_heads, d_model // num_heads)",
            "x.reshape(*batch, L, d_model // num_heads, num_heads).swapaxes(-2, -1)",
        ),
        ("merge_without_swap", "    o = o.swapaxes(-3, -2)  # (..., L, H, D)\n", ""),
        ("merge_swaps_wrong_axes", "o = o.swapaxes(-3, -2)  #", "o = o.swapaxes(-3, -2).swapaxes(-2, -1)  #"),
        ("output_bias_missing", "return project(c, w_o, b_o)", "return project(c, w_o)"),
        ("heads_need_not_divide", "if d_model % num_heads:", "if num_heads > d_model:"),
    ),
    *_in(
        "attention.py",
        (
            "keep_ignored",
            "keep = np.True_ if keep is None else check_keep(keep, scores.shape)\n    weights = masked_softmax(",
            "keep = np.True_\n    weights = masked_softmax(",
        ),
        ("weighted_sum_no_guard", "if np.isfinite(value).all():", "if True:"),
        ("weighted_sum_hides_every_nan", "np.where(allowed, terms, 0)", "np.nan_to_num(terms)"),
        ("eight_lines_without_mask", "(query, key, value, keep)  # (..., H, L, D)", "(query, key, value)"),
        ("eight_lines_value_by_key_matrix", '@ params["w_v"]', '@ params["w_k"]'),
        ("eight_lines_other_bias", '+ params["b_v"]', '+ params["b_k"]'),
        ("eight_lines_no_output_bias", ' + params["b_o"]', ""),
        ("eight_lines_no_output_matrix", 'context @ params["w_o"] +', "context +"),
        ("value_from_query", "value = key if value is None", "value = query if value is None"),
        ("key_from_query", "project(key, self.w_k, self.b_k)", "project(query, self.w_k, self.b_k)"),
        ("other_bias_for_value", "project(value, self.w_v, self.b_v)", "project(value, self.w_v, self.b_k)"),
        ("layer_without_output_bias", "self.w_o, self.b_o), weights", "self.w_o), weights"),
        ("weights_averaged", "self.b_o), weights\n", "self.b_o), weights.mean(axis=-3)\n"),
        ("from_torch_order", "w_q, w_k, w_v = np.split(", "w_k, w_q, w_v = np.split("),
        ("from_torch_not_transposed", "cls(w_q.T, w_k.T, w_v.T, w_o.T,", "cls(w_q, w_k, w_v, w_o,"),
    ),
]  # fmt: skip
