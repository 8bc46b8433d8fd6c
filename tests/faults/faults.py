"""Faults that people really make, each as one edit of one file of the package.

A fault that is a known mistake of an exercise is only named here, `_as_in("03.scores", "no_scale")`:
its edit stands in the registry. The others say theirs: `old` occurs exactly once in the file. The
file with `new` in its place still compiles (tests/test_faults.py). None of them has the same outputs
as the right code. Left out for that reason: a wrong or missing bias of the keys, which shifts a whole
row of scores and leaves every weight as it is.

The NumPy half comes first, then the layer in PyTorch, the small models and their data.
"""

import ast
from itertools import pairwise
from typing import NamedTuple

from mha_lesson.course.errors import CourseError


class Fault(NamedTuple):
    """One edit of a file, written down here."""

    name: str
    file: str
    old: str
    new: str

    def put_into(self, text):
        """The file's text with the fault in it."""
        return "".join(_edited([text], self))


class KnownMistake(NamedTuple):
    """The edit of an exercise's known mistake, put into the solution where the package has it.

    The registry is imported when it is asked for: the help of `faults` needs nothing installed.
    """

    exercise: str
    mistake: str

    @property
    def name(self):
        return f"{self.exercise}.{self.mistake}"

    @property
    def file(self):
        return f"{self._place[0].replace('.', '/')}.py"

    def put_into(self, text):
        """The file's text with the fault in the solution; the same words in a docstring or elsewhere stay."""
        before, signature, docstring, body, after = _around(self._place[1], text)
        signature, body = _edited([signature, body], self)
        return before + signature + docstring + body + after

    @property
    def old(self):
        return self._edit.old

    @property
    def new(self):
        return self._edit.new

    @property
    def _place(self):
        return _registered(self.exercise).solution_place.split(":")

    @property
    def _edit(self):
        return next(m for m in _registered(self.exercise).mistakes if m.name == self.mistake)


def _registered(id):
    from mha_lesson.exercises import REGISTRY

    return REGISTRY[id]


def _around(name, text):
    """The text in five: before this function, its first lines, its docstring, its body, and what follows it."""
    (function,) = (n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef) and n.name == name)
    start = min(node.lineno for node in (function, *function.decorator_list)) - 1
    first = function.body[0]
    behind = first.lineno - 1 if ast.get_docstring(function) is None else first.end_lineno
    lines = text.splitlines(keepends=True)
    at = [0, start, first.lineno - 1, behind, function.end_lineno, len(lines)]
    return ["".join(lines[i:j]) for i, j in pairwise(at)]


def _edited(parts, fault):
    """These parts of a file with the fault's one edit: its old text occurs once in all of them together."""
    times = sum(part.count(fault.old) for part in parts)
    if times != 1:
        raise CourseError(
            f"{fault.name}: its old text should occur once in {fault.file}, and occurs {times} times: {fault.old!r}.",
            "change the fault, or the exercise whose mistake it is, together with the line that it quotes.",
        )
    return [part.replace(fault.old, fault.new) for part in parts]


def _in(file, *edits):
    return [Fault(name, f"mha_lesson/{file}", old, new) for name, old, new in edits]


def _as_in(exercise, *mistakes):
    return [KnownMistake(exercise, mistake) for mistake in mistakes]


FAULTS = [
    *_in(
        "steps/lookup.py",
        ("soft_lookup_no_max", "np.exp(match - match.max())", "np.exp(match)"),
        ("soft_lookup_not_divided", "    share = share / share.sum()\n", ""),
        ("soft_lookup_match_twice", "share @ values", "(share * match) @ values"),
    ),
    *_as_in("00.double", "squares"),
    *_in(
        "steps/embeddings.py",
        ("ids_negative_allowed", "ids.min() < 0 or ids.max()", "ids.max()"),
        ("ids_off_by_one", "ids.max() >= len(table)", "ids.max() > len(table)"),
        (
            "positions_sin_cos_swapped",
            "np.sin(angle[:, 0::2])\n    positions[:, 1::2] = np.cos(",
            "np.cos(angle[:, 0::2])\n    positions[:, 1::2] = np.sin(",
        ),
        (
            "positions_on_the_batch_axis",
            "return x + positions[:L]",
            "return x + np.resize(positions, x.shape[::2])[:, None]",
        ),
        ("rotary_sign", "* cos - x[..., 1::2] * sin", "* cos + x[..., 1::2] * sin"),
        ("rotary_other_base", "base: float = 100.0", "base: float = 10000.0"),
    ),
    *_as_in("01.embed", "not_scaled", "divided", "vocabulary_width"),
    *_as_in("01.positions", "exponent_twice", "base_1000", "from_one"),
    *_as_in("01.rotary", "backwards", "exponent_half"),
    *_in(
        "steps/projections.py",
        ("weight_transposed", "projected = x @ w ", "projected = x @ w.T "),
        ("bias_missing", "projected if b is None else projected + b", "projected"),
        ("bias_subtracted", "else projected + b", "else projected - b"),
        ("query_and_key_swapped", "project(x, w_q), project(x, w_k),", "project(x, w_k), project(x, w_q),"),
    ),
    *_as_in("02.qkv", "value_from_key"),
    *_in(
        "steps/scores.py",
        ("scale_twice", "/ math.sqrt(d_head)", "/ math.sqrt(2 * d_head)"),
    ),
    *_as_in("03.scores", "no_scale", "by_d", "by_queries", "multiplied"),
    *_as_in("03.variance", "square_forgotten"),
    *_in(
        "steps/masks.py",
        ("causal_reversed", "return key_place <= query_place ", "return key_place >= query_place "),
        ("causal_sees_one_ahead", "return key_place <= query_place ", "return key_place <= query_place + 1 "),
        ("three_axes_accepted", "if len(shape) == 4 and keep.ndim == 3:", "if False:"),
        ("float_masks_accepted", "if mask.dtype == bool:\n        return mask\n", "return mask.astype(bool)\n"),
        ("to_torch_mha_polarity", "blocked = ~keep", "blocked = keep"),
        ("to_torch_mha_order", "wanted).reshape(", "wanted).swapaxes(0, 1).reshape("),
        ("from_torch_mha_polarity", "else ~np.asarray(mask)", "else np.asarray(mask)"),
        ("additive_polarity", "return mask == 0", "return mask != 0"),
    ),
    *_as_in("04.causal", "inverted", "top_left", "not_itself"),
    *_as_in("04.window", "one_too_wide", "one_too_narrow", "no_upper_edge"),
    *_as_in("04.padding", "one_too_many", "inverted"),
    *_as_in("04.combine", "or", "batch_on_heads"),
    *_in(
        "steps/softmax.py",
        ("masked_softmax_over_queries", "total = e.sum(axis=-1,", "total = e.sum(axis=0,"),
        (
            "empty_rows_divided",
            "np.divide(e, total, out=np.zeros_like(e), where=total != 0)",
            "e / total",
        ),
        ("empty_rows_peak", "peak = np.where(np.isneginf(peak), 0, peak)", "peak = peak + 0"),
        ("fill_zero", "z = np.where(keep, z, -np.inf)", "z = np.where(keep, z, 0)"),
        ("mask_added", "z = np.where(keep, z, -np.inf)", "z = z + np.where(keep, 0, -np.inf)"),
    ),
    *_as_in("05.softmax", "maximum_right_sum_wrong", "no_max", "not_normalised"),
    *_as_in("05.masked", "no_max", "small_fill", "ignores_mask", "inverted"),
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
        ("heads_need_not_divide", "if d_model % num_heads:", "if num_heads > d_model:"),
    ),
    *_as_in("06.output", "no_bias"),
    *_in(
        "attention.py",
        (
            "keep_ignored",
            "keep = np.True_ if keep is None else check_keep(keep, scores.shape)\n    weights = masked_softmax(",
            "keep = np.True_\n    weights = masked_softmax(",
        ),
        ("weighted_sum_no_guard", "if np.isfinite(value).all():", "if True:"),
        ("weighted_sum_hides_every_nan", "np.where(allowed, terms, 0)", "np.nan_to_num(terms)"),
        ("eight_lines_value_by_key_matrix", '@ params["w_v"]', '@ params["w_k"]'),
        ("eight_lines_other_bias", '+ params["b_v"]', '+ params["b_k"]'),
        ("eight_lines_no_output_matrix", 'context @ params["w_o"] +', "context +"),
        ("value_from_query", "value = key if value is None", "value = query if value is None"),
        ("key_from_query", "project(key, self.w_k, self.b_k)", "project(query, self.w_k, self.b_k)"),
        ("other_bias_for_value", "project(value, self.w_v, self.b_v)", "project(value, self.w_v, self.b_k)"),
        ("layer_without_output_bias", "self.w_o, self.b_o), weights", "self.w_o), weights"),
        ("weights_averaged", "self.b_o), weights\n", "self.b_o), weights.mean(axis=-3)\n"),
        ("from_torch_order", "w_q, w_k, w_v = np.split(", "w_k, w_q, w_v = np.split("),
        ("from_torch_not_transposed", '"w_q": w_q.T, "w_k": w_k.T,', '"w_q": w_q, "w_k": w_k,'),
    ),
    *_as_in("06.mha", "ignores_mask", "no_output_bias"),
    *_in(
        "steps/encoder_decoder.py",
        ("cross_values_not_mixed", "return weights @ xe", "return xe[weights.argmax(axis=-1)]"),
        (
            "decoder_looks_ahead",
            "decoder_keep = causal_mask(L, L)[None, None]",
            "decoder_keep = np.ones((1, 1, L, L), dtype=bool)",
        ),
        (
            "greedy_writes_stop",
            "        tokens.append(best)\n    return tokens[1:]",
            "        tokens.append(best)\n    return tokens[1:] + [stop]",
        ),
    ),
    *_as_in("07.cross", "no_scale"),
    *_as_in("07.masks", "causal_on_cross", "causal_on_encoder"),
    *_as_in("07.decode", "first_row", "last_token_only", "keeps_start", "one_too_few"),
    *_as_in("07.cost", "keys_by_queries", "one_product"),
    *_in(
        "steps/inspection.py",
        ("ablation_drops_the_bias", "merge_heads(kept), w_o, b_o)", "merge_heads(kept), w_o, 0 * b_o)"),
        (
            "ablation_scales_up",
            "    kept[off] = 0\n",
            "    kept[off] = 0\n    kept *= len(heads) / max(1, len(heads) - len(off))\n",
        ),
        ("ablation_in_place", "kept = heads.copy()", "kept = heads"),
        ("ablation_keeps_only_these", "kept[off] = 0", "kept[[h for h in range(len(heads)) if h not in off]] = 0"),
        ("ablation_counts_from_the_end", "(off[0] >= 0 and off[-1] < len(heads))", "(off[-1] < len(heads))"),
        ("find_head_in_the_mean_over_queries", "weights[:, :, query, key]", "weights.mean(axis=2)[:, :, key]"),
        ("induction_over_all_places", "np.mean(found, axis=0) if", "np.sum(found, axis=0) / len(tokens) if"),
    ),
    *_as_in("09.similarity", "no_root", "natural_logarithm", "sum_of_both", "half_of_it", "largest_query"),
    *_as_in("09.find", "query_and_key_swapped", "order"),
    *_as_in("09.induction", "at_the_copy", "largest_copy", "not_doubled_tokens"),
    *_in(
        "steps/head_count.py",
        ("parameters_without_biases_of_kv", "2 * (d_model * kv_width + kv_width)", "2 * d_model * kv_width"),
        ("sweep_one_seed", "[train(heads, seed) for seed in seeds]", "[train(heads, seeds[0]) for _ in seeds]"),
        ("choice_of_the_best", "np.where(as_good, costs, np.inf)", "np.where(as_good, -scores.mean(axis=1), np.inf)"),
    ),
    *_as_in("10.parameters", "kv_heads_ignored", "no_output", "no_values"),
    *_as_in("10.sweep", "best_seed", "high_before_low", "median"),
    *_as_in("10.choose", "bar_of_the_luckiest", "bar_at_the_mean", "means_compared_only", "touching_ranges"),
    *_in(
        "pytorch/masks.py",
        (
            "torch_causal_top_left",
            "torch.arange(L, device=device)[:, None] + (S - L)",
            "torch.arange(L, device=device)[:, None]",
        ),
        ("torch_causal_hides_itself", "return key_place <= query_place", "return key_place < query_place"),
        ("torch_masks_joined_with_or", "keep & triangle", "keep | triangle"),
        ("torch_causal_beats_keep", "return triangle if keep is None else keep & triangle", "return triangle"),
        ("torch_empty_rows_not_opened", "return mask | empty, empty", "return mask, empty"),
        ("torch_padding_polarity", "x.masked_fill(~seen[..., None], 0)", "x.masked_fill(seen[..., None], 0)"),
        ("torch_clears_what_some_may_see", "seen = keep.any(dim=(1, 2))", "seen = keep.all(dim=(1, 2))"),
        ("torch_three_axes_accepted", "if len(shape) == 4 and keep.dim() == 3:", "if False:"),
        (
            "torch_numbers_accepted",
            "    if keep.dtype != torch.bool:\n",
            "    keep = keep.bool()\n    if keep.dtype != torch.bool:\n",
        ),
        ("torch_shape_not_checked", "    if not fits:\n", "    if False:\n"),
        (
            "torch_shape_checked_from_the_front",
            "zip(keep.shape[::-1], shape[::-1], strict=False)",
            "zip(keep.shape, shape, strict=False)",
        ),
    ),
    *_in(
        "pytorch/heads.py",
        (
            "torch_split_by_reshape",
            "x.unflatten(-1, (num_heads, x.shape[-1] // num_heads)).transpose(1, 2)",
            "x.reshape(len(x), num_heads, x.shape[1], x.shape[-1] // num_heads)",
        ),
        (
            "torch_merge_without_swap",
            "return context.transpose(1, 2).flatten(-2)",
            "return context.reshape(len(context), context.shape[2], context.shape[1] * context.shape[3])",
        ),
        (
            "torch_kv_heads_tiled",
            "x.repeat_interleave(num_heads // x.shape[1], dim=1)",
            "x.repeat(1, num_heads // x.shape[1], 1, 1)",
        ),
    ),
    *_in("attention.py", ("torch_to_numpy_shares_memory", "np.array(tensor.numpy())", "tensor.numpy()")),
    *_in(
        "pytorch/cores/core.py",
        ("core_refuses_nothing", "if not fits(self.can):", "if False:"),
        ("core_takes_masks_with_gaps", "~keep[..., :-1]", "keep[..., :-1]"),
        ("core_takes_masks_of_heads", "keep.shape[-3:-1]", "keep.shape[-2:-1]"),
        ("core_names_who_cannot", "in COURSE.items() if fits(can)]", "in COURSE.items() if not fits(can)]"),
        ("core_function_gets_shared_heads", "if not self.can.shared_heads:", "if False:"),
        ("core_half_under_autocast", "enabled=False)", "enabled=True)"),
        ("core_dropout_refused_late", "        if dropout:\n", "        if False:\n"),
        ("core_blind_to_torch_func", "is_functorch_wrapped_tensor(x)", "is_functorch_wrapped_tensor(x) and False"),
        ("core_gradients_unseen", "torch.is_grad_enabled() and any(", "False and any("),
        ("core_kernel_takes_gaps", '"flash": Can(masks="lengths"', '"flash": Can(masks="keys"'),
        ("core_window_both_ways", 'causal=(True,), dropout=False, exact=False', 'dropout=False, exact=False'),
        ("core_window_is_exact", "causal=(True,), dropout=False, exact=False)", "causal=(True,), dropout=False)"),
        ("core_context_not_looked_at", "if not isinstance(context, Tensor) or context.shape != shape:", "if False:"),
    ),
    *_in(
        "pytorch/cores/sdpa.py",
        ("torch_sdpa_is_causal_always", "if causal and keep is None and L == S:", "if causal and keep is None:"),
        ("torch_empty_rows_keep_their_mean", "return context.masked_fill(empty, 0)", "return context"),
        ("torch_empty_weights_not_cleared", "weights.masked_fill(empty, 0).to(q.dtype)", "weights.to(q.dtype)"),
        ("torch_nan_never_mended", "if (causal or keep is not None) and has_nan(context):", "if False:"),
        ("torch_nan_mended_under_causal_alone", "if (causal or keep is not None) and", "if causal and"),
        ("torch_looks_for_inf", "context.detach().sum().isnan()", "context.detach().sum().isinf()"),
        ("torch_looks_inside_vmap", "except RuntimeError:  #", "except ValueError:  #"),
        ("torch_shield_keys_alone", "k.isfinite().all(-1) & v.isfinite().all(-1)", "k.isfinite().all(-1)"),
        ("torch_shield_hides_what_is_seen", "return torch.where(seen > 0, context.detach(), mended)", "return mended"),
        ("torch_shield_lets_gradients_pass", "context.detach(), mended)", "context, mended)"),
        ("torch_weights_no_scale", "q.to(wide) / math.sqrt(q.shape[-1]) @", "q.to(wide) @"),
        (
            "torch_weights_scale_of_the_model",
            "q.to(wide) / math.sqrt(q.shape[-1]) @",
            "q.to(wide) / math.sqrt(q.shape[1] * q.shape[-1]) @",
        ),
        ("torch_weights_in_half", "wide = torch.promote_types(q.dtype, torch.float32)", "wide = q.dtype"),
        ("torch_weights_finite_fill", "masked_fill(~mask, -math.inf)", "masked_fill(~mask, -1e4)"),
        ("torch_weights_polarity", "masked_fill(~mask, -math.inf)", "masked_fill(mask, -math.inf)"),
        ("torch_weights_over_queries", "return scores.softmax(dim=-1)", "return scores.softmax(dim=-2)"),
    ),
    *_in(
        "pytorch/layer.py",
        ("torch_padding_in_keys_stays", "            key = clear_padding(key, keep)  # (B, S, K)\n", ""),
        (
            "torch_padding_in_values_stays",
            "value = key if one else clear_padding(value, keep)",
            "value = key if one else value",
        ),
        ("torch_dropout_in_evaluation", "self.dropout if self.training else 0.0", "self.dropout"),
        (
            "torch_weights_after_dropout",
            "core.weights(q, k, keep=keep, causal=causal) if need_weights",
            "nn.functional.dropout(core.weights(q, k, keep=keep, causal=causal), self.dropout, self.training) "
            "if need_weights",
        ),
        (
            "torch_weights_averaged",
            "return (output, weights) if need_weights else output\n",
            "return (output, weights.mean(1)) if need_weights else output\n",
        ),
        (
            "torch_asking_changes_the_output",
            "        output = self.out_proj(merge_heads(context))",
            "        if need_weights:\n"
            "            context = attention_weights(q, k, keep, causal) @ share_heads(v, self.num_heads)\n"
            "        output = self.out_proj(merge_heads(context))",
        ),
        (
            "torch_value_from_query",
            "return key, key if value is None else value",
            "return key, query if value is None else value",
        ),
        ("torch_vdim_ignored", "self.vdim = d_model if vdim is None else vdim", "self.vdim = self.kdim"),
        ("torch_kdim_and_vdim_swapped", "kdim=module.kdim, vdim=module.vdim", "kdim=module.vdim, vdim=module.kdim"),
        ("torch_new_bias_not_zero", "nn.init.zeros_(linear.bias)", "nn.init.uniform_(linear.bias, -0.1, 0.1)"),
        (
            "torch_from_torch_order",
            "weights = module.in_proj_weight.chunk(3)",
            "weights = [module.in_proj_weight.chunk(3)[i] for i in (1, 0, 2)]",
        ),
        (
            "torch_from_torch_without_biases",
            "if in_bias is None else in_bias.chunk(3)",
            "if True else in_bias.chunk(3)",
        ),
        ("torch_from_torch_forgets_the_mode", "return layer.train(module.training)", "return layer"),
        (
            "torch_from_torch_forgets_dropout",
            "bias=in_bias is not None, dropout=module.dropout,",
            "bias=in_bias is not None,",
        ),
        ("torch_from_numpy_not_transposed", "torch.tensor(w.T) for w in", "torch.tensor(w) for w in"),
        (
            "torch_from_numpy_half_the_biases",
            "bias=any(b is not None for b in biases)",
            "bias=all(b is not None for b in biases)",
        ),
        ("torch_to_numpy_not_transposed", "*(numpy_copy(w).T for w in weights)", "*(numpy_copy(w) for w in weights)"),
        (
            "torch_to_numpy_heads_tiled",
            "heads.repeat_interleave(self.num_heads // self.num_kv_heads, dim=0).flatten(0, 1)",
            "heads.repeat(self.num_heads // self.num_kv_heads, *[1] * (heads.dim() - 1)).flatten(0, 1)",
        ),
        ("torch_batch_not_checked", "if x.shape[:-2] != query.shape[:-2]:", "if False:"),
        (
            "torch_kv_heads_need_not_divide",
            "if self.num_heads % self.num_kv_heads:",
            "if self.num_heads < self.num_kv_heads:",
        ),
    ),
    *_as_in("08.blocked", "keep", "one_too_few"),
    *_as_in("08.per_head", "mask_not_turned", "averaged", "mask_forgotten"),
    *_in(
        "pytorch/layer_checks.py",
        ("trust_one_check_is_enough", "return all(check(layer)", "return any(check(layer)"),
        ("trust_while_dropping", "copy.deepcopy(layer).cpu().eval()", "copy.deepcopy(layer).cpu()"),
        ("trust_changes_the_mode", "copy.deepcopy(layer).cpu().eval()", "layer.cpu().eval()"),
        ("trust_nan_is_close", "rtol=1e-4, atol=1e-5)", "rtol=1e-4, atol=1e-5, equal_nan=True)"),
        (
            "trust_changes_no_padding",
            "key.masked_fill(padding, 10), value.masked_fill(padding, -10), mask",
            "key, value, mask",
        ),
        ("trust_future_top_left", ".tril(7 - 5)", ".tril()"),
        ("trust_empty_rows_without_bias", "layer.out_proj(torch.zeros_like(x[0, 0]))", "0"),
        ("trust_equal_lengths", "for n in (5, 7, 7)]", "for n in (5, 5, 5)]"),
        (
            "trust_sums_over_queries",
            "close(weights.sum(-1), torch.ones_like(weights[..., 0]))",
            "close(weights.sum(-2), torch.ones_like(weights[..., 0, :]))",
        ),
        (
            "trust_kv_heads_tiled",
            "x.repeat_interleave(layer.num_heads // x.shape[1], dim=1)",
            "x.repeat(1, layer.num_heads // x.shape[1], 1, 1)",
        ),
    ),
    *_in(
        "steps/serving.py",
        ("repeat_tiled", "np.repeat(key, n, axis=-3)", "np.concatenate([key] * n, axis=-3)"),
        ("repeat_tokens", "np.repeat(key, n, axis=-3)", "np.repeat(key, n, axis=-2)"),
        ("step_forgets", "key = np.concatenate([cache[0], key])  # (S, D), the new token included", "pass"),
        ("chunk_upper_left", "causal_mask(len(query), len(key))", "np.tril(np.ones((len(query), len(key)), bool))"),
        ("chunk_without_mask", "causal_mask(len(query), len(key))", "np.ones((len(query), len(key)), bool)"),
    ),
    *_as_in("11.bytes", "keys_only"),
    *_in(
        "steps/long_context.py",
        (
            "one_pass_drops_the_rest",
            "for start in range(0, len(scores), block):",
            "for start in range(0, len(scores) - block + 1, block):",
        ),
        ("parts_not_brought_together", "np.exp(m1 - highest), np.exp(m2 - highest)", "1 + 0 * l1, 1 + 0 * l2"),
        ("merge_o_not_shrunk", "o1 * shrink1[..., None] + o2", "o1 + o2"),
        ("tiles_upper_left", "places = rows + (S - L)", "places = rows"),
        ("tiles_no_scale", " / math.sqrt(query.shape[1])  # (n, s)", ""),
        ("features_without_one", "np.where(x > 0, x + 1,", "np.where(x > 0, x,"),
        ("state_before_its_token", "np.outer(key[t], value[t])", "np.outer(key[t - 1], value[t - 1])"),
        ("chunks_not_causal", "np.tril(query[piece] @ key[piece].T)", "query[piece] @ key[piece].T"),
    ),
    *_as_in("12.online", "nothing_shrunk", "only_o_shrunk"),
    *_as_in("12.merge", "nan_when_empty"),
    *_as_in("12.linear", "total_of_last"),
    *_in(
        "steps/gpu.py",
        ("device_first_run_as_fast", "self.FIRST if self.runs == 0 else 0.0", "0.0"),
        ("device_jobs_at_once", "max(self.busy_until, self.clock) + seconds", "self.clock + seconds"),
        ("agrees_any_shape", "output.shape != exact.shape or not", "not"),
        ("agrees_by_the_mean", ".max(initial=0)\n    return", ".mean()\n    return"),
        ("agrees_absolute", "error <= tolerance * np.abs(exact[finite]).max(initial=0)", "error <= tolerance"),
        ("agrees_as_bfloat16", "4 * ROUNDING[dtype]", '4 * ROUNDING["bfloat16"]'),
        ("flops_without_pv", "flops = 4 *", "flops = 2 *"),
        ("flops_causal_not_halved", "flops // 2 if causal", "flops if causal"),
        ("bytes_without_output", "(2 * L + 2 * S)", "(L + 2 * S)"),
        ("bytes_scores_moved_twice", "4 * B * H * L * S\n    return numbers", "2 * B * H * L * S\n    return numbers"),
    ),
    *_as_in("13.timed", "no_last_wait", "no_first_wait"),
    *_as_in("13.ring", "other_direction", "past_hidden", "own_piece_full"),
    *_in(
        "pytorch/cores/tiled.py",
        ("online_sum_not_shrunk", "total.mul_(shrink).add_", "total.add_"),
        ("online_mix_not_shrunk", "mix.mul_(shrink).baddbmm_", "mix.baddbmm_"),
        ("online_shrink_upside_down", "shrink = (peak - shift)", "shrink = (shift - peak)"),
        ("online_lse_without_peak", "peak + total.masked_fill_(empty, 1).log()", "total.masked_fill_(empty, 1).log()"),
        ("online_causal_upper_left", "first, last = a + S - L, b - 1 + S - L", "first, last = a, b - 1"),
        (
            "online_future_one_too_far",
            "return key > torch.arange(first, last + 1",
            "return key > 1 + torch.arange(first, last + 1",
        ),
        ("online_no_scale", "fold(q, G, wide) * (1 / math.sqrt(q.shape[3]))", "fold(q, G, wide) * 1.0"),
        ("online_backward_without_delta", "grad_weights.sub_(delta[:, rows]).mul_", "grad_weights.mul_"),
        ("online_backward_ignores_lse", "delta if grad_lse is None else delta - grad_lse", "delta"),
        ("online_grad_q_not_scaled", "grad_q = grad_q.mul_(1 / math.sqrt(q.shape[3]))", "grad_q = grad_q.mul_(1)"),
        (
            "online_grad_v_not_transposed",
            "grad_v[:, cols].baddbmm_(weights.mT,",
            "grad_v[:, cols].baddbmm_(grad_scores.mT,",
        ),
        ("merge_equal_weights", "(weight1 / total)[..., None] * out1", "0.5 * out1"),
        ("merge_lse_without_shift", "(total.log() + shift)", "total.log()"),
        ("merge_empty_is_nan", "total = total.masked_fill(empty, 1)  # before", "total = total.clone()  # before"),
    ),
    *_in(
        "pytorch/cores/window.py",
        ("window_one_wider", "(key > query - width)", "(key >= query - width)"),
        ("window_one_narrower", "(key > query - width)", "(key > query - width + 1)"),
        ("window_chunk_sees_the_future", "(key <= query) & (key > query - width)", "(key > query - width)"),
        ("window_padding_seen", " & (key >= 0)", ""),
        (
            "window_sinks_twice",
            "torch.arange(sinks, device=device) <= query - width",
            "torch.arange(sinks, device=device) <= query",
        ),
        ("window_chunk_starts_late", "first, last = starts[0] - width + 1,", "first, last = starts[0] - width + 2,"),
        ("window_upper_left", "max(S - L, 0) + i * chunk", "i * chunk"),
    ),
    *_in(
        "pytorch/cores/linear.py",
        ("linear_elu_without_one", "x.clamp(max=0).exp() + x.relu()", "x.clamp(max=0).exp() + x.relu() - 1"),
        ("linear_relu_below_zero", "x.clamp(max=0).exp() + x.relu()", "1 + x.relu()"),
        ("linear_not_causal_in_a_chunk", "(query @ key.mT).tril() @", "(query @ key.mT) @"),
        ("linear_not_itself", "(query @ key.mT).tril() @", "(query @ key.mT).tril(-1) @"),
        ("linear_forgets_older_chunks", "mix = mix + query @ self.sums[:, :, None]", "mix = mix + 0"),
        ("linear_state_replaced", "sums if self.sums is None else self.sums + sums", "sums"),
        ("linear_not_divided", "(mix[..., :-1] / total)", "(mix[..., :-1])"),
        ("linear_padding_counts", "key = key.masked_fill(padding, 0)  # phi", "key = key  # phi"),
    ),
    *_in(
        "pytorch/cache.py",
        (
            "fold_tiled",
            "q.unflatten(1, (num_kv_heads, heads // num_kv_heads)).flatten(2, 3)",
            "q.unflatten(1, (heads // num_kv_heads, num_kv_heads)).transpose(1, 2).flatten(2, 3)",
        ),
        (
            "unfold_tiled",
            "context.unflatten(2, (R, rows // R)).flatten(1, 2)",
            "context.unflatten(2, (R, rows // R)).transpose(1, 2).flatten(1, 2)",
        ),
        ("folded_mask_row_by_row", "torch.cat([keep] * (H // G), dim=-2)", "keep.repeat_interleave(H // G, dim=-2)"),
        ("grouped_ignores_causal", "keep = joint_mask(keep, causal, L,", "keep = joint_mask(keep, False, L,"),
        (
            "cache_triangle_top_left",
            "causal_mask(n, used, asked.device)",
            "causal_mask(n, used, asked.device).new_ones(n, used).tril()",
        ),
        ("cache_chunk_without_mask", "return None if n == 1 else causal_mask", "return None if n else causal_mask"),
        ("cache_unequal_lengths_as_a_triangle", "and keep is not None and keep.dim() == 2:", "and keep is not None:"),
        ("cache_hides_the_new_token", "(place <= query)", "(place < query)"),
        ("cache_sees_the_future", "(place >= 0) & (place <= query)", "(place >= 0)"),
        ("cache_sees_empty_slots", "(place >= 0) & (place <= query)", "(place <= query)"),
        ("cache_window_one_more", "keep &= place > query - self.window", "keep &= place >= query - self.window"),
        ("cache_window_one_less", "keep &= place > query - self.window", "keep &= place > query - self.window + 1"),
        ("cache_window_forgotten", "keep &= place > query - self.window", "keep &= True"),
        (
            "cache_padding_queries_see",
            "return keep if even else keep & _real(new, n, keep.device)[:, None, :, None]",
            "return keep",
        ),
        ("cache_ring_too_small", "needed = window + chunk - 1", "needed = window"),
        (
            "cache_padding_is_kept",
            "for start, count in zip(starts, new, strict=True)]\n        self._make",
            "for start, count in zip(starts, [k.shape[2]] * len(new), strict=True)]\n        self._make",
        ),
        ("cache_padding_is_written", "< new[:, None]).nonzero", "<= new[:, None]).nonzero"),
        ("cache_slots_side_by_side", "slot = place % self.capacity", "slot = (token + self._top) % self.capacity"),
        (
            "cache_growth_forgets_values",
            "keys[:, :, :kept], values[:, :, :kept] = self._keys, self._values",
            "keys[:, :, :kept] = self._keys",
        ),
        ("cache_growth_forgets_places", "            places[:, :kept] = self._places\n", ""),
        ("cache_grows_by_one", "max(needed, 2 * self.capacity)", "needed"),
        ("cache_memory_not_zero", "return torch.zeros(*like", "return torch.empty(*like"),
        (
            "cache_memory_for_inference_mode_alone",
            "    with torch.inference_mode(False):  # so that the next call",
            "    if True:  # so that the next call",
        ),
        ("cache_positions_from_one", "return after + self._first()", "return after + self._first() + 1"),
        ("cache_positions_of_the_longest", "return self.length[:, None] + after", "return self.length.max() + after"),
        ("cache_truncate_keeps_numbers", "        self._keys[row, :, slot] = 0\n", ""),
        ("cache_truncate_keeps_places", "        self._places[row, slot] = -1\n", ""),
        ("cache_truncate_one_too_many", "(self._places >= remain).nonzero", "(self._places >= remain - 1).nonzero"),
        ("cache_truncate_anything", "            if any(missing):", "            if False:"),
        (
            "cache_select_keys_alone",
            "self._keys[rows], self._values[rows], self._places[rows]",
            "self._keys[rows], self._values[: len(rows)], self._places[rows]",
        ),
        (
            "cache_select_forgets_lengths",
            "self._counts = [self._counts[b] for b in rows.tolist()]",
            "self._counts = self._counts[:1] * len(rows)",
        ),
        (
            "cache_pieces_all_real",
            "some = [min(max(count - start, 0), size) for count in new]",
            "some = [size for count in new]",
        ),
        (
            "cache_weights_by_slot",
            "self._places[:, None, None, : keys.shape[2]].clamp(min=0)",
            "torch.arange(keys.shape[2])[None, None, None].expand(len(q), -1, -1, -1) % max(self._counts)",
        ),
        ("cache_takes_gradients", "if x.requires_grad and torch.is_grad_enabled():", "if False:"),
        ("cache_room_not_checked", "needed > self._wanted:", "needed > self._wanted + 1:"),
        ("cache_none_after_truncate", " and self._counts[0] == self._top:", ":"),
    ),
    *_in(
        "pytorch/rotary.py",
        ("torch_rotary_backwards", "a * cos - b * sin, a * sin + b * cos", "a * cos + b * sin, b * cos - a * sin"),
        (
            "torch_rotary_halves",
            "a, b = x[..., 0::2].to(cos.dtype), x[..., 1::2].to(cos.dtype)",
            "a, b = (half.to(cos.dtype) for half in x.chunk(2, -1))",
        ),
        ("torch_rotary_joined_as_halves", "turned.flatten(-2)", "turned.transpose(-1, -2).flatten(-2)"),
        ("torch_rotary_exponent_doubled", "torch.arange(0, width, 2,", "torch.arange(0, 2 * width, 4,"),
        ("torch_rotary_angles_in_float32", "else torch.float64 ", "else torch.float32 "),
        ("torch_rotary_in_half", "torch.promote_types(x.dtype, torch.float32)", "x.dtype"),
        ("torch_rotary_positions_on_the_head_axis", "angle = angle[:, None]", "angle = angle[None]"),
        ("torch_rotary_other_base", "base: float = 10000.0", "base: float = 100.0"),
    ),
    *_in(
        "pytorch/layer.py",
        (
            "torch_rotary_keys_alone",
            "return apply_rotary(q, cos, sin), apply_rotary(k, cos, sin)",
            "return q, apply_rotary(k, cos, sin)",
        ),
        (
            "torch_rotary_from_zero_each_time",
            "cache.positions(q.shape[2]).to(q.device)",
            "torch.arange(q.shape[2], device=q.device)",
        ),
        (
            "torch_lengths_forgotten",
            "cache.attend(q, k, v, lengths, need_weights)",
            "cache.attend(q, k, v, None, need_weights)",
        ),
        ("torch_rotary_across", "if self.rotary_base is not None and key is not query:", "if False:"),
        ("torch_cache_while_dropping", "if self.training and self.dropout:", "if False:"),
    ),
    *_in(
        "models/blocks.py",
        ("block_forgets_lengths", '{"cache": cache, "lengths": lengths}', '{"cache": cache}'),
    ),
    *_in(
        "models/char_lm.py",
        (
            "cached_positions_from_zero",
            "caches[0].positions(tokens.shape[1]).to(tokens.device)",
            "torch.arange(tokens.shape[1])",
        ),
        (
            "cached_text_read_twice",
            "new = tokens[:, fed:][:, -model.context :]",
            "new = tokens[:, max(fed - 1, 0) :][:, -model.context :]",
        ),
        (
            "batch_read_at_the_padding",
            "lengths.to(new.device) - 1 if i == 0",
            "torch.full_like(lengths, new.shape[1] - 1) if i == 0",
        ),
        ("batch_without_lengths", "lengths if i == 0 else None)", "None)"),
        ("full_cache_keeps_everything", "tokens[:, -max(model.context // 2, 1) :]", "tokens[:, -model.context :]"),
        (
            "one_cache_for_all_blocks",
            "return [KVCache(capacity=self.context) for _ in self.blocks]",
            "return [KVCache(capacity=self.context)] * len(self.blocks)",
        ),
    ),
    *_in(
        "pytorch/first_kernel.py",
        ("kernel_without_mask", 's = tl.where(keys[None, :] < N, s, float("-inf"))', "s = s"),
    ),
    *_as_in("13.kernel", "no_scale", "l_not_shrunk", "m_not_kept"),
    *_in(
        "pytorch/parallel/launch.py",
        (
            "launch_results_turned_round",
            "read_bytes()) for rank in range(world_size)]",
            "read_bytes()) for rank in reversed(range(world_size))]",
        ),
        ("launch_every_rank_is_the_first", "result = worker(rank, world_size", "result = worker(0, world_size"),
        ("launch_blames_the_last", "rank = min(reports)", "rank = max(reports)"),
        ("launch_blames_no_dead", "for rank in _dead(ranks, folder):", "for rank in _dead(ranks, folder)[1:]:"),
        ("launch_late_are_those_in_time", "if not _result(", "if _result("),
        ("launch_takes_a_cell_function", 'if in_notebook or "<" in name:', "if in_notebook:"),
    ),
    *_in(
        "pytorch/parallel/heads.py",
        ("heads_gradient_of_one_rank", "return _sum_over_ranks(gradient, ctx.group), None", "return gradient, None"),
        (
            "heads_gradient_summed_twice",
            "        return gradient, None",
            "        return _sum_over_ranks(gradient, None), None",
        ),
        ("heads_bias_twice", "else output + self.out_bias", "else output + 2 * self.out_bias"),
        ("heads_out_columns_of_the_first", "(slice(None), rows)", "(slice(None), slice(len(rows)))"),
        ("heads_features_overlap", "range(h * D, (h + 1) * D)", "range(h, h + D)"),
        ("heads_read_tiled", "h * layer.num_kv_heads // layer.num_heads for h", "h % layer.num_kv_heads for h"),
        (
            "heads_uneven_as_even",
            " and read == [g for g in once for _ in range(len(read) // len(once))]",
            "",
        ),
        ("heads_mask_of_the_first", "keep[..., self.heads, :, :]", "keep[..., : len(self.heads), :, :]"),
        ("heads_copies_not_added", "mine.copy_(_sum_over_ranks(whole, self.group)[place])", "mine.copy_(whole[place])"),
        ("heads_sum_spoils_its_input", "x.contiguous().clone()", "x.contiguous()"),
    ),
    *_in(
        "pytorch/parallel/ring.py",
        ("ring_the_other_way", "source = (rank - step) % world", "source = (rank + step) % world"),
        ("ring_triangle_in_every_piece", "causal=causal and source == rank", "causal=causal"),
        ("ring_without_triangle", "causal=causal and source == rank", "causal=False"),
        ("ring_looks_ahead", "if source <= rank or not causal:", "if True:"),
        ("ring_rounds_in_between", "wide = torch.promote_types(q.dtype, torch.float32)", "wide = q.dtype"),
        ("ring_keeps_the_last_answer", "part if answer is None else merge(*answer, *part)", "part"),
        ("ring_work_without_the_diagonal", "sum(block + 1 for block", "sum(block for block"),
        ("ring_zigzag_overlaps", "2 * world_size - 1 - r)}", "2 * world_size - 2 - r)}"),
    ),
    *_in(
        "pytorch/parallel/traffic.py",
        ("traffic_in_numbers", "tensor.numel() * tensor.element_size()", "tensor.numel()"),
        ("traffic_sums_are_free", "(2 if backward else 1)", "1"),
        ("traffic_to_oneself", "* bytes_per_number * (world - 1)", "* bytes_per_number * world"),
        ("traffic_of_keys_alone", "return 2 * B * kv_heads", "return B * kv_heads"),
    ),
    *_in(
        "pytorch/triton_numpy/__init__.py",
        ("stand_in_rounds_blocks_down", "return -(-x // y)", "return x // y"),
        ("stand_in_power_too_large", "1 << max(n - 1, 0).bit_length()", "1 << n.bit_length()"),
        ("stand_in_views_start_at_0", "first = x.storage_offset()", "first = 0"),
        ("stand_in_numbers_have_no_format", "return language.cast(x, language._format_of_number(x))", "return x"),
        ("stand_in_runs_all", "if only is not None:", "if False:"),
        ("stand_in_half_of_the_programs", "(range(n) for n in", "(range((n + 1) // 2) for n in"),
    ),
    *_in(
        "pytorch/triton_numpy/language.py",
        ("tl_bfloat16_cut_off", "np.uint32(0x7FFF) + ((bits", "np.uint32(0) * ((bits"),
        ("tl_bfloat16_ties_up", "np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))", "np.uint32(0x8000)"),
        ("tl_divides_as_python", "((x - np.fmod(x, y)) // y)", "(x // y)"),
        ("tl_rest_as_python", "_operator(np.fmod, divide=True), ", "_operator(np.mod, divide=True), "),
        ("tl_maximum_spreads_nan", "Tile(np.fmax(x, y), dtype)", "Tile(np.maximum(x, y), dtype)"),
        ("tl_max_spreads_nan", "np.fmax, True)", "np.maximum, True)"),
        ("tl_masked_load_is_0", 'float("nan") if dtype.is_floating() else 0', "0"),
        ("tl_reads_behind_the_view", "or at.max() > memory.last:", "or at.max() >= memory.numbers.size:"),
        ("tl_reads_before_the_view", "if at.min() < memory.first or", "if at.min() < 0 or"),
        ("tl_dot_in_half_precision", "wide = float64 if a.dtype is float64 else float32", "wide = a.dtype"),
        ("tl_dot_forgets_acc", "    return acc + product", "    return product"),
        ("tl_numbers_widen_the_tile", "            a = b = tile", "            a = b = number"),
        ("tl_exp_takes_halves", "if x.dtype not in (float32, float64):", "if False:"),
        ("tl_one_axis_of_programs", "np.int32(_program[axis])", "np.int32(_program[0])"),
        (
            "tl_adds_once_at_a_place",
            "for place, number in zip(at[mask], numbers[mask], strict=True):",
            "for place, number in dict(zip(at[mask], numbers[mask], strict=True)).items():",
        ),
        ("tl_sums_in_the_wide_format", "np.add, False)", "np.add, True)"),
    ),
    *_in(
        "pytorch/cores/flash_triton.py",
        ("flash_sum_not_shrunk", "l = l * shrink + tl.sum(p, 1)", "l = l + tl.sum(p, 1)"),
        ("flash_acc_not_shrunk", "tl.dot(p.to(v.dtype), v, acc * shrink[:, None],", "tl.dot(p.to(v.dtype), v, acc,"),
        ("flash_causal_upper_left", "last = tl.minimum(last, rows + (S - L))", "last = tl.minimum(last, rows)"),
        (
            "flash_heads_tiled",
            "K += b * k_b + h // R * k_h  # neighbours share a key head",
            "K += b * k_b + h % (H // R) * k_h",
        ),
        ("flash_lengths_off_by_one", "last = rows * 0 + (stop - 1)", "last = rows * 0 + stop"),
        ("flash_lse_in_powers_of_two", "(m + tl.log2(seen)) * LN_2", "(m + tl.log2(seen))"),
        (
            "flash_dq_not_scaled",
            "store_rows(DQ + head * L * D, rows, width, L, dq * scale, D)",
            "store_rows(DQ + head * L * D, rows, width, L, dq, D)",
        ),
        ("flash_dk_not_scaled", "keys, width, S, dk * scale, D)", "keys, width, S, dk, D)"),
        (
            "flash_delta_left_out",
            "delta = tl.sum(do.to(tl.float32) * o.to(tl.float32), 1)",
            "delta = 0 * tl.sum(do.to(tl.float32) * o.to(tl.float32), 1)",
        ),
        (
            "flash_dv_not_transposed_weights",
            "dv = tl.dot(tl.trans(p.to(do.dtype)), do, dv,",
            "dv = tl.dot(p.to(do.dtype), do, dv,",
        ),
        ("flash_first_head_only", "h = g * R + r", "h = g * R"),
    ),
    *_in(
        "models/blocks.py",
        ("uniform_ignores_keep", "mask = joint_mask(keep, causal,", "mask = joint_mask(None, causal,"),
        ("uniform_divided_by_all_keys", "allowed / allowed.sum(-1, keepdim=True).clamp(min=1)", "allowed / S"),
        ("uniform_weights_after_dropout", "self.dropout(weights[:, 0]) @", "weights[:, 0] @"),
        ("block_without_first_residual", "x = x + self.dropout(self.attention(", "x = self.dropout(self.attention("),
        (
            "block_post_norm",
            "x = x + self.dropout(self.attention(self.norm(x), keep=keep, causal=causal, **serving))",
            "x = self.norm(x + self.dropout(self.attention(x, keep=keep, causal=causal, **serving)))",
        ),
        ("block_cross_without_mask", ", memory, keep=memory_keep)", ", memory)"),
        ("block_cross_masked_like_itself", ", memory, keep=memory_keep)", ", memory, keep=keep)"),
        ("block_relu", "nn.GELU()", "nn.ReLU()"),
        ("block_feeds_unnormed", "self.feed_forward(self.feed_norm(x))", "self.feed_forward(x)"),
        ("tokens_polarity", "(ids != padding)", "(ids == padding)"),
        ("heads_off_rows", "weight[:, h * width : (h + 1) * width] = 0", "weight[h * width : (h + 1) * width] = 0"),
        ("heads_off_for_good", "weight.copy_(before)", "weight.copy_(weight)"),
        ("recording_stays_for_good", "del layer.forward  #", "layer.forward = layer.forward  #"),
        (
            "recording_hides_the_weights",
            "return (output, weights) if need_weights else output\n\n    return asked",
            "return output\n\n    return asked",
        ),
    ),
    *_in(
        "models/training.py",
        ("no_warm_up", "rise = min(1.0, (step + 1) / warmup)", "rise = 1.0"),
        ("rate_falls_to_zero", "(1 + left) / 2 + (1 - left) / 2 * math.cos", "0.5 + 0.5 * math.cos"),
        (
            "same_batch_every_step",
            "generator = torch.Generator().manual_seed(step_seed(seed, step))",
            "generator = torch.Generator().manual_seed(seed)",
        ),
        ("gradients_pile_up", "    optimiser.zero_grad(set_to_none=True)\n", ""),
        ("gradients_not_cut", "    nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n", ""),
        ("trained_model_still_drops", "    model.eval()\n    return model, {**run", "    return model, {**run"),
        ("resume_without_optimiser", '        optimiser.load_state_dict(state["optimiser"])\n', ""),
        ("resume_another_run", 'if state["run"] != run:', "if False:"),
        ("resume_from_half_a_checkpoint", "        model.load_state_dict(fresh)\n", ""),
        ("resume_one_step_back", "model, optimiser, step + 1, seconds)", "model, optimiser, step, seconds)"),
        ("loaded_model_still_drops", "model.to(dtype).eval(), facts", "model.to(dtype), facts"),
        ("loaded_as_shipped_variant", 'task.build(**facts["variant"])', "task.build(**task.variants[task.shipped])"),
        ("one_seed_for_all", 'f"{seed}/{step}".encode()', 'f"{step}".encode()'),
    ),
    *_in(
        "models/induction.py",
        (
            "copying_one_place_early",
            "torch.arange(1, LENGTH)[None] > period",
            "torch.arange(1, LENGTH)[None] >= period",
        ),
        ("copying_everywhere", ".cpu()[known].double()", ".cpu().double()"),
        ("copying_its_own_symbol", "(guess == tokens[:, 1:]).cpu()", "(guess == tokens[:, :-1]).cpu()"),
        ("copier_sees_the_future", "block(x, causal=True)", "block(x)"),
        ("copier_learns_its_own_symbol", "tokens[:, 1:].flatten()", "tokens[:, :-1].flatten()"),
        ("period_one_too_short", "PERIODS[1] + 1, (count,)", "PERIODS[1], (count,)"),
        (
            "each_head_means_all_heads",
            "with heads_off(layer, [head]):",
            "with heads_off(layer, range(layer.num_heads)):",
        ),
    ),
    *_in(
        "models/char_lm.py",
        ("bits_are_nats", " / pieces.numel() / math.log(2)", " / pieces.numel()"),
        ("scored_on_the_whole_novel", "text[len(text) * 9 // 10 :], model.context", "text, model.context"),
        ("scored_on_its_own_letters", "answers = text[1 : pieces.numel() + 1]", "answers = text[: pieces.numel()]"),
        ("trained_on_the_test_part", "last = len(text) * 9 // 10 - context - 1", "last = len(text) - context - 1"),
        ("language_model_sees_the_future", "block(x, causal=True, ", "block(x, "),
        ("window_looks_ahead", "(self.window - 1, 0), value", "(0, self.window - 1), value"),
        ("temperature_upside_down", "(logits / temperature)", "(logits * temperature)"),
        ("write_reads_the_beginning", "tokens[:, -model.context :]", "tokens[:, : model.context]"),
    ),
    *_in(
        "models/translation.py",
        ("encoder_sees_padding", "x = block(x, keep=real_tokens(source))", "x = block(x)"),
        (
            "decoder_sees_the_answer",
            "memory_keep=real_tokens(source), causal=True)",
            "memory_keep=real_tokens(source))",
        ),
        ("cross_sees_padding", "x, memory, memory_keep=real_tokens(source), causal", "x, memory, causal"),
        ("decoder_positions_of_the_source", "self.target_positions.weight[", "self.source_positions.weight["),
        ("loss_counts_padding", "ignore_index=PADDING, ", ""),
        ("loss_of_the_same_place", "target[:, 1:].flatten(), ignore", "target[:, :-1].flatten(), ignore"),
        ("words_hold_the_end", "ids[: ids.index(END)]", "ids[: ids.index(END) + 1]"),
        ("translation_never_stops", "if (target == END).any(1).all():", "if False:"),
        ("translation_stops_at_the_first", "if (target == END).any(1).all():", "if (target == END).any():"),
        ("alignment_one_row_late", "weights.mean(0)[:-1]", "weights.mean(0)[1:]"),
        ("straight_counts_steps_back", "place[1:] >= place[:-1]", "place[1:] <= place[:-1]"),
        ("symbols_count_padding", "((guess == answer) & (answer != PADDING)).sum()", "(guess == answer).sum()"),
        ("shortened_to_the_shortest", "(rows != PADDING).sum(1).max()", "(rows != PADDING).sum(1).min()"),
    ),
    *_in(
        "models/classifier.py",
        (
            "patches_column_by_column",
            "images.unfold(1, size, size).unfold(2, size, size)",
            "images.unfold(2, size, size).unfold(1, size, size)",
        ),
        ("patches_rows_of_pixels", "squares.flatten(1, 2).flatten(-2)", "images.reshape(len(images), -1, size * size)"),
        ("class_from_the_last_piece", "self.norm(x[:, 0])", "self.norm(x[:, -1])"),
        ("classifier_without_positions", "if self.positions is not None:", "if False:"),
        ("classifier_scored_on_training", "_, _, pieces, labels = self.data", "pieces, labels, _, _ = self.data"),
        ("speech_scaled_by_the_test", "(test - mean) / spread", "(test - test.mean()) / test.std()"),
    ),
    *_in(
        "models/series.py",
        ("window_one_hour_late", "torch.arange(-PAST, 0)", "torch.arange(-PAST + 1, 1)"),
        (
            "forecast_knows_the_answer",
            "unknown = torch.zeros(len(start), AHEAD, 1)",
            "unknown = counts[after][..., None]",
        ),
        ("bikes_scaled_by_the_year", "logs[bikes.train].mean(), logs[bikes.train].std()", "logs.mean(), logs.std()"),
        ("bikes_score_in_logarithms", "(bikes_of(forecast) - bikes_of(answer))", "(forecast - answer)"),
        ("bikes_score_without_the_mean", "z.double() * spread + mean", "z.double() * spread"),
        ("batch_reaches_into_the_test", "load_bikes().train.stop - AHEAD", "load_bikes().train.stop"),
        ("calendar_in_degrees", "angle = 2 * np.pi * hours", "angle = 360 * hours"),
        ("calendar_of_the_past_ahead", "later[..., None], when[after]]", "later[..., None], when[before[:, -AHEAD:]]]"),
        (
            "copy_of_the_wrong_day",
            "start = PAST - self.hours",
            "start = PAST - self.hours - AHEAD if self.hours < PAST else 0",
        ),
    ),
    *_in(
        "models/results.py",
        (
            "results_of_one_seed",
            'tuple(row["scores"][metric] for row in rows)',
            'tuple(row["scores"][metric] for row in rows[:1])',
        ),
        ("results_ignore_the_metric", 'metric = metric or record["metric"]', 'metric = record["metric"]'),
        ("results_low_is_high", "return min(self.scores)", "return max(self.scores)"),
        ("results_mean_seconds", 'np.median([row["cpu_seconds"]', 'np.mean([row["cpu_seconds"]'),
        ("results_are_shared", "copy.deepcopy(_read(name))", "_read(name)"),
    ),
    *_in(
        "models/minilm.py",
        (
            "gelu_by_tanh",
            "np.asarray(_erf(x / math.sqrt(2)), dtype=x.dtype)",
            "np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))",
        ),
        ("gelu_without_root", "_erf(x / math.sqrt(2))", "_erf(x)"),
        (
            "minilm_norm_before_the_sum",
            "layer_norm(x + found, self.attention_gain, self.attention_bias)",
            "x + layer_norm(found, self.attention_gain, self.attention_bias)",
        ),
        (
            "minilm_norms_swapped",
            "layer_norm(x + found, self.attention_gain, self.attention_bias)",
            "layer_norm(x + found, self.feed_forward_gain, self.feed_forward_bias)",
        ),
        ("minilm_without_residual", "layer_norm(y + thought,", "layer_norm(thought,"),
        ("minilm_residual_skips_attention", "layer_norm(y + thought,", "layer_norm(x + thought,"),
        (
            "minilm_off_by_columns",
            "w_o[head * d_head : (head + 1) * d_head] = 0",
            "w_o[:, head * d_head : (head + 1) * d_head] = 0",
        ),
        ("minilm_off_in_every_layer", "for where, head in off if where == number]", "for where, head in off]"),
        ("minilm_vector_of_cls", "hidden[-1].mean(axis=0)", "hidden[-1][0]"),
        ("minilm_vector_not_scaled", "return mean / np.linalg.norm(mean)", "return mean"),
        ("minilm_vector_of_the_whole_model", "self(sentence, ablate).hidden", "self(sentence).hidden"),
    ),
    *_in(
        "models/minilm_torch.py",
        ("minilm_torch_gelu_by_tanh", "F.gelu(self.linear_1(y))", 'F.gelu(self.linear_1(y), approximate="tanh")'),
        ("minilm_torch_other_eps", "eps=EPS", "eps=1e-5"),
        ("minilm_torch_without_type", "self.position[:L] + self.kind)", "self.position[:L])"),
        ("minilm_torch_ignores_keep", "layer(x, keep)", "layer(x)"),
        ("minilm_torch_not_transposed", "_fill(linear, w.T, b)", "_fill(linear, w.reshape(w.shape[::-1]), b)"),
    ),
    *_in(
        "models/recall.py",
        ("recall_symbol_before_left_out", "self.symbols(tokens) + self.before(before)", "self.symbols(tokens)"),
        ("recall_looks_ahead", "x = block(x, causal=True)", "x = block(x)"),
        ("recall_asked_before_told", ".sort(-1).values.unbind(-1)", ".sort(-1, descending=True).values.unbind(-1)"),
        ("recall_distance_off_by_one", "(asked - told - 1) * used", "(asked - told) * used"),
        ("recall_counts_what_is_not_asked", 'groups = {"accuracy": asked}', 'groups = {"accuracy": asked | True}'),
    ),
    *_in(
        "data.py",
        ("spelling_tested_on_training", "test=pairs[-1500:]", "test=pairs[:1500]"),
        ("dates_of_another_language", "test_languages=languages[-2000:]", "test_languages=languages[:2000]"),
        ("digits_not_scaled", 'file["images"] / 16', 'file["images"] / 1'),
        ("bikes_test_overlaps", "test=slice(7296, 8760)", "test=slice(7200, 8760)"),
        (
            "speech_parts_swapped",
            '("train", ~stored["is_test"]), ("test", stored["is_test"])',
            '("train", stored["is_test"]), ("test", ~stored["is_test"])',
        ),
        ("data_norm_without_gain", "np.sqrt(variance + eps) * gain + bias", "np.sqrt(variance + eps) + bias"),
        (
            "data_norm_unbiased",
            "(centred**2).mean(axis=-1, keepdims=True)",
            "(centred**2).sum(axis=-1, keepdims=True) / (x.shape[-1] - 1)",
        ),
        ("data_embed_without_type", "self.token_table[ids] + self.type_vector", "self.token_table[ids]"),
    ),
]  # fmt: skip
