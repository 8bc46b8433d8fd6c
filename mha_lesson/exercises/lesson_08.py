"""Exercises of lesson 08: nn.MultiheadAttention without its traps, and a test for any attention layer.

Importing this needs no torch: `torch` below is looked up when a probe or a mistake is run.
"""

import copy
import importlib
from collections.abc import Callable

import numpy as np

from mha_lesson.attention import numpy_copy, params_from_torch
from mha_lesson.exercises import calls
from mha_lesson.exercises.compare import NotPlain, plain
from mha_lesson.exercises.engine import Exercise, Mistake, Probe
from mha_lesson.exercises.probes import wave
from mha_lesson.steps.masks import causal_mask, padding_mask
from mha_lesson.steps.softmax import masked_softmax


class _Late:
    """A module that is imported when its first name is asked for."""

    def __init__(self, name: str):
        self.name = name

    def __getattr__(self, name: str):
        return getattr(importlib.import_module(self.name), name)


torch = _Late("torch")
functional = _Late("torch.nn.functional")
layers = _Late("mha_lesson.pytorch.layer")
mutants = _Late("mha_lesson.exercises.mutants")
layer_checks = _Late("mha_lesson.pytorch.layer_checks")


# ------------------------------------------------------------------------------ the padding mask


def _whole_numbers(function: Callable) -> bool:
    """Does this blocked() answer with integers? PyTorch refuses them, and adds floats."""
    value = calls.call_all(function, [BLOCKED.probe_list[0].args], calls.SECONDS)[0].value
    return plain(value).dtype.kind in "iu"


def _additive_alike(args: tuple, answer):
    """A mask of 0 and large numbers (-1e4, -1e9, the lowest float) as one of 0 and infinities."""
    try:
        mask = plain(answer)
    except NotPlain:
        return answer
    if not isinstance(mask, np.ndarray) or mask.dtype.kind != "f":
        return answer
    additive = ((mask == 0) | (abs(mask) >= 100)).all()
    return np.where(mask == 0, 0, np.copysign(np.inf, mask)) if additive else answer


def _added(lengths, S, number: float, at_padding: bool = True):
    return torch.zeros(len(lengths), S).masked_fill(BLOCKED.solution(lengths, S) == at_padding, number)


BLOCKED = Exercise(
    id="08.blocked",
    needs_torch=True,
    signature="blocked(lengths, S)",
    solution="mha_lesson.pytorch.interop:key_padding_mask",
    probes=lambda: [
        Probe(([3, 1], 5), "lengths 3 and 1, S = 5"),
        Probe(([2, 7, 5], 7), "lengths 2, 7 and 5, S = 7"),
        Probe(([0, 2], 3), "an empty sequence, S = 3"),
        Probe(([1, 4, 2, 3], 6), "four sequences, S = 6, longer than all of them"),
        Probe(([2, 3, 1], 3), "B = S = 3, lengths 2, 3 and 1"),
    ],
    read=_additive_alike,
    mistakes=(
        Mistake(
            "keep",
            "The edge is in the right place. But True means 'may attend' here, this course's own meaning; "
            "nn.MultiheadAttention wants True where it is blocked, at the padding. Turn it round: ~mask.",
            ">=", "<",
        ),
        Mistake(
            "one_too_few",
            "Padding is True, good. But its first place is left open: places count from 0, so place `length` "
            "is padding already. >= and not >.",
            ">=", ">",
        ),
        Mistake(
            "one_too_many",
            "Padding is True, good. But the last real token is blocked as well: place length - 1 still belongs to "
            "the sequence.",
            "torch.arange(S) >=", "torch.arange(S) + 1 >=",
        ),
        Mistake(
            "swapped_axes",
            "The comparison is right. But yours is (S, B); nn.MultiheadAttention wants one row for each sequence, "
            "(B, S), whatever batch_first says.",
            function=lambda lengths, S: BLOCKED.solution(lengths, S).T,
        ),
        Mistake(
            "zeros_and_ones",
            "1 stands where it is blocked, good. But numbers are no booleans: a float mask is ADDED to the "
            "scores, so a 1 would favour the padding, and no error says so. Make it boolean: .bool().",
            function=lambda lengths, S: BLOCKED.solution(lengths, S).float(),
        ),
        Mistake(
            "whole_zeros_and_ones",
            "1 stands where it is blocked, good. But integers are no booleans, and nn.MultiheadAttention refuses "
            "them. The comparison gives True and False by itself: leave out what makes numbers of them.",
            function=lambda lengths, S: BLOCKED.solution(lengths, S).int(),
            when=_whole_numbers,
        ),
        Mistake(
            "tokenizer_mask",
            "This is the mask as tokenizers give it, 1 = token. But nn.MultiheadAttention would add it to the "
            "scores, which hides nothing. What it wants is boolean, and True at the padding: mask == 0.",
            function=lambda lengths, S: (~BLOCKED.solution(lengths, S)).float(),
        ),
        Mistake(
            "whole_tokenizer_mask",
            "This is the mask as tokenizers give it, 1 = token. But nn.MultiheadAttention refuses integers. What it "
            "wants is boolean, and True at the padding: the place is `length` or more.",
            function=lambda lengths, S: (~BLOCKED.solution(lengths, S)).int(),
            when=_whole_numbers,
        ),
        Mistake(
            "additive",
            "0 and -inf (or a large negative number), added to the scores: nn.MultiheadAttention takes this too, and "
            "it hides the right places. But a boolean mask is asked for, True = blocked: mask < 0.",
            function=lambda lengths, S: _added(lengths, S, -np.inf),
        ),
        Mistake(
            "additive_inverted",
            "A mask of 0 and -inf (or a large negative number) is added to the scores, which is allowed. But yours "
            "hides the tokens, and a boolean mask is asked for, True at the padding: here mask == 0.",
            function=lambda lengths, S: _added(lengths, S, -np.inf, at_padding=False),
        ),
        Mistake(
            "additive_positive",
            "The padding is marked, good. But a large positive number, added to the scores, draws all attention there; "
            "and a boolean mask is asked for, True = blocked: mask > 0.",
            function=lambda lengths, S: _added(lengths, S, np.inf),
        ),
        Mistake(
            "no_column",
            "Comparing places with lengths is right. But (S,) and (B,) meet place by place: that fails, and where "
            "B = S each place gets the length of another sequence. Make the lengths a column: [:, None].",
            "[:, None]", "",
        ),
        Mistake(
            "padding_first",
            "As many places are blocked as there is padding. But you block the first ones; here the padding comes "
            "after the tokens.",
            function=lambda lengths, S: BLOCKED.solution(lengths, S).flip(1),
        ),
        Mistake(
            "axes_too_early",
            "The values are right, and (B, 1, 1, S) is what this course's layers and SDPA take. But key_padding_mask "
            "is (B, S), without axes for heads and queries.",
            function=lambda lengths, S: BLOCKED.solution(lengths, S)[:, None, None, :],
        ),
        Mistake(
            "longest_for_S",
            "Padding is True, good. But the mask ends with the longest sequence: it has to be S wide, as wide as "
            "the batch.",
            "torch.arange(S)", "torch.arange(max(lengths))",
        ),
        Mistake(
            "first_length_for_all",
            "The first row is right. But every sequence got the length of the first: a column of lengths, "
            "[:, None], gives each its own.",
            function=lambda lengths, S: BLOCKED.solution([lengths[0]] * len(lengths), S),
        ),
        Mistake(
            "nothing_blocked",
            "The shape is right. But nothing is blocked: compare each place with the length of its sequence.",
            function=lambda lengths, S: torch.zeros(len(lengths), S, dtype=torch.bool),
        ),
    ),
    forms={
        "a loop": lambda lengths, S: [[place >= n for place in range(S)] for n in lengths],
        "NumPy": lambda lengths, S: np.arange(S) >= np.array(lengths)[:, None],
        "the course's own mask turned round": lambda lengths, S: ~torch.as_tensor(padding_mask(np.array(lengths), S)),
        "filled row by row": lambda lengths, S: _by_rows(lengths, S),
        "stacked": lambda lengths, S: torch.stack([torch.arange(S).ge(n) for n in lengths]),
    },
    hints=(
        "True = blocked: where in a row of S places does the padding begin?",
        "Compare each place 0, 1, ..., S - 1 with the length of its sequence. Tokens stand at places < length; the "
        "padding is the other side, places >= length, and True belongs there.",
        "torch.arange(S) has shape (S,). To meet every length, the lengths must be a column: "
        "torch.tensor(lengths)[:, None].",
    ),
    well_done="True = blocked, (B, S), boolean. With SDPA the same word would mean the opposite.",
)  # fmt: skip


def _by_rows(lengths, S):
    mask = torch.zeros(len(lengths), S, dtype=torch.bool)
    for row, n in zip(mask, lengths, strict=True):
        row[n:] = True
    return mask


# ------------------------------------------------------------------------------ the packed weights


def _module(E: int, H: int, dtype: str = "float64", dropout: float = 0.0):
    """An nn.MultiheadAttention in evaluation mode. Its biases are not 0, as they are when it is new."""
    with torch.random.fork_rng(devices=[]):  # making it draws numbers: the notebook's stay as they were
        module = torch.nn.MultiheadAttention(E, H, dropout=dropout, batch_first=True, dtype=getattr(torch, dtype))
    with torch.no_grad():
        for i, parameter in enumerate(module.parameters()):
            parameter.copy_(torch.as_tensor(wave(*parameter.shape, step=0.37 + i / 7, start=0.1 + i, size=0.6)))
    return module.eval()


def _unpack(layer, weights=None, biases=None, **changed) -> dict:
    """The right dictionary but for what is `changed`; `weights` and `biases` are q, k, v in another order."""
    params = params_from_torch(layer)
    if weights is not None:
        params |= {f"w_{n}": np.asarray(w) for n, w in zip("qkv", weights, strict=True)}
    if biases is not None:
        params |= {f"b_{n}": np.asarray(b) for n, b in zip("qkv", biases, strict=True)}
    return {**params, **changed}


def _reordered(layer, order: str) -> dict:
    """As if the packed rows were those of `order`."""
    params = params_from_torch(layer)
    moved = {f"{kind}_{name}": params[f"{kind}_{at}"] for kind in "wb" for name, at in zip(order, "qkv", strict=True)}
    return {**params, **moved}


def _by_slices(layer) -> dict:
    """Right, with tensors."""
    E, w, b = layer.embed_dim, layer.in_proj_weight, layer.in_proj_bias
    q, k, v = slice(0, E), slice(E, 2 * E), slice(2 * E, None)
    return {
        "w_q": w[q].T, "w_k": w[k].T, "w_v": w[v].T, "w_o": layer.out_proj.weight.T,
        "b_q": b[q], "b_k": b[k], "b_v": b[v], "b_o": layer.out_proj.bias,
    }  # fmt: skip


LOAD = Exercise(
    id="08.load",
    needs_torch=True,
    signature="load(layer)",
    solution=params_from_torch,
    exact=True,
    helpers=(numpy_copy,),
    probes=lambda: [
        Probe((_module(6, 2),), "d_model 6, 2 heads, float64"),
        Probe((_module(15, 5),), "d_model 15, 5 heads, float64"),
        Probe((_module(12, 3, "float32"),), "d_model 12, 3 heads, float32"),
    ],
    mistakes=(
        Mistake(
            "not_transposed",
            "The rows are cut in the right places. But PyTorch stores (out, in) and computes x @ W.T; "
            "this course computes x @ w: transpose all four matrices.",
            '{"w_q": w_q.T, "w_k": w_k.T, "w_v": w_v.T, "w_o": w_o.T}',
            '{"w_q": w_q, "w_k": w_k, "w_v": w_v, "w_o": w_o}',
        ),
        Mistake(
            "output_not_transposed",
            "Query, key and value are right. But out_proj.weight is stored (out, in) too: transpose it as well.",
            '"w_o": w_o.T', '"w_o": w_o',
        ),
        Mistake(
            "inputs_not_transposed",
            "The rows are cut in the right places, and w_o is right. But the three parts of in_proj_weight are "
            "stored (out, in) too: transpose them as well.",
            '{"w_q": w_q.T, "w_k": w_k.T, "w_v": w_v.T', '{"w_q": w_q, "w_k": w_k, "w_v": w_v',
        ),
        Mistake(
            "key_first",
            "The rows are cut in the right places. But you took them for key, query, value; the query comes first: "
            "q, k, v.",
            function=lambda layer: _reordered(layer, "kqv"),
        ),
        Mistake(
            "value_first",
            "The rows are cut in the right places. But you took them for value, query, key; their order is q, k, v.",
            function=lambda layer: _reordered(layer, "vqk"),
        ),
        Mistake(
            "value_second",
            "The rows are cut in the right places, and w_q is right. But you took the others for value, key; "
            "their order is q, k, v.",
            function=lambda layer: _reordered(layer, "qvk"),
        ),
        Mistake(
            "reversed",
            "The rows are cut in the right places. But you took them for value, key, query; their order is q, k, v.",
            function=lambda layer: _reordered(layer, "vkq"),
        ),
        Mistake(
            "columns",
            "Three equal parts, good. But you cut the columns of in_proj_weight (3 E, E); query, key and value "
            "lie one above the other: cut the rows, axis 0. And transpose each part.",
            function=lambda layer: _unpack(layer, np.split(numpy_copy(layer.in_proj_weight), 3, axis=1)),
        ),
        Mistake(
            "columns_transposed",
            "Cut into three and transposed, good. But each part has E / 3 rows: query, key and value lie one above "
            "the other in in_proj_weight (3 E, E), and side by side in its transpose. Cut rows first, then transpose.",
            function=lambda layer: _unpack(layer, np.split(numpy_copy(layer.in_proj_weight).T, 3)),
        ),
        Mistake(
            "every_third_row",
            "Rows it is, and E of them for each. But q, k and v are three blocks, not every third row: the first E "
            "rows are the query's.",
            function=lambda layer: _unpack(
                layer,
                [numpy_copy(layer.in_proj_weight)[i::3].T for i in range(3)],
                [numpy_copy(layer.in_proj_bias)[i::3] for i in range(3)],
            ),
        ),
        Mistake(
            "packed_by_head",
            "Some models pack q, k and v of head 0, then those of head 1, and so on. But nn.MultiheadAttention packs "
            "the query of all heads, then the key, then the value: three blocks of E rows.",
            function=lambda layer: _unpack(
                layer,
                numpy_copy(layer.in_proj_weight).reshape(layer.num_heads, 3, -1, layer.embed_dim)
                .transpose(1, 3, 0, 2).reshape(3, layer.embed_dim, -1),
                numpy_copy(layer.in_proj_bias).reshape(layer.num_heads, 3, -1).swapaxes(0, 1).reshape(3, -1),
            ),
        ),
        *(
            Mistake(
                f"biases_{order}",
                f"The matrices are right. But you cut in_proj_bias as {', '.join(order)}; its order is that of the "
                f"weights: q, k, v. (In a new layer all of it is 0, which hides this.)",
                function=lambda layer, order=order: _unpack(
                    layer, biases=[params_from_torch(layer)[f"b_{'qkv'[order.index(n)]}"] for n in "qkv"]
                ),
            )
            for order in ("kqv", "vqk", "qvk", "vkq", "kvq")
        ),
        Mistake(
            "one_bias_for_all",
            "The matrices are right. But all three biases are the first third of in_proj_bias: it is packed as the "
            "weights are. (In a new layer all of them are 0, which hides this.)",
            function=lambda layer: _unpack(layer, biases=[numpy_copy(layer.in_proj_bias)[: layer.embed_dim]] * 3),
        ),
        Mistake(
            "biases_zero",
            "The matrices are right. But the biases are 0 only in a new layer: take them from in_proj_bias and "
            "out_proj.bias.",
            function=lambda layer: {
                n: p * 0 if n[0] == "b" else p for n, p in params_from_torch(layer).items()
            },
        ),
        Mistake(
            "output_bias_zero",
            "All is right up to the last bias. But b_o is 0 only in a new layer: it is out_proj.bias.",
            function=lambda layer: _unpack(layer, b_o=np.zeros(layer.embed_dim)),
        ),
    ),
    forms={
        "tensors, by slices": _by_slices,
        "chunks": lambda layer: _unpack(
            layer,
            [w.detach().numpy().T for w in layer.in_proj_weight.chunk(3)],
            [b.detach().numpy() for b in layer.in_proj_bias.chunk(3)],
        ),
        "one reshape": lambda layer: _unpack(
            layer, numpy_copy(layer.in_proj_weight).reshape(3, layer.embed_dim, -1).swapaxes(1, 2)
        ),
        "cut after transposing": lambda layer: _unpack(layer, np.split(numpy_copy(layer.in_proj_weight).T, 3, axis=1)),
        "from the state_dict": lambda layer: _from_state(layer.state_dict()),
        "nested lists": lambda layer: {n: p.tolist() for n, p in params_from_torch(layer).items()},
    },
    hints=(
        "Print the names and shapes in layer.state_dict(). in_proj_weight is (3 E, E): query, key, value, "
        "one above the other.",
        "np.split(layer.in_proj_weight.detach().numpy(), 3) gives three blocks of rows: query, key, value. "
        "in_proj_bias is cut in the same way.",
        "PyTorch computes x @ W.T, we compute x @ w. So each of the four matrices is transposed, out_proj.weight too.",
        'Return {"w_q": w_q.T, ..., "w_o": ..., "b_q": ..., "b_o": ...}: eight names, those of lesson 06.',
    ),
    well_done="Packed (3 E, E), stored (out, in): now any nn.MultiheadAttention runs on your own NumPy layer.",
)  # fmt: skip


def _from_state(state) -> dict:
    """Right, by the names in the state_dict."""
    q, k, v = (i * state["out_proj.bias"].shape[0] for i in range(3))
    packed, bias = state["in_proj_weight"].numpy().T, state["in_proj_bias"].numpy()
    return {
        "w_q": packed[:, q:k], "w_k": packed[:, k:v], "w_v": packed[:, v:], "w_o": state["out_proj.weight"].numpy().T,
        "b_q": bias[q:k], "b_k": bias[k:v], "b_v": bias[v:], "b_o": state["out_proj.bias"].numpy(),
    }  # fmt: skip


# ------------------------------------------------------------------------------ the weights of each head


def _keep(L: int):
    """No symmetry, and every query may attend to something."""
    i, j = np.arange(L)[:, None], np.arange(L)
    return torch.as_tensor(((2 * i + 3 * j) % 5 < 3) | (j == 0))


def _asking(layer, x, keep, **options):
    return layer(x, x, x, **{"attn_mask": ~keep, "average_attn_weights": False, **options})


def _wants_no_weights(function: Callable) -> bool:
    """Does this per_head() call its layer with need_weights=False?"""
    asked = []

    def look(module, args, options):
        asked.append(args[4] if len(args) > 4 else options.get("need_weights", True))

    layer, x, keep = copy.deepcopy(PER_HEAD.probe_list[0].args)
    layer.register_forward_pre_hook(look, with_kwargs=True)
    calls.call_all(function, [(layer, x, keep)], calls.SECONDS)
    return bool(asked) and not any(asked)


def _by_hand(layer, x, keep):
    """Right, without the layer's own call."""
    params = params_from_torch(layer)
    q, k = (x.numpy() @ params[f"w_{n}"] + params[f"b_{n}"] for n in "qk")
    q, k = (a.reshape(*x.shape[:2], layer.num_heads, -1).swapaxes(1, 2) for a in (q, k))
    return masked_softmax(q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]), keep.numpy())


PER_HEAD = Exercise(
    id="08.per_head",
    needs_torch=True,
    signature="per_head(layer, x, keep)",
    solution="mha_lesson.pytorch.interop:head_weights",
    probes=lambda: [
        Probe((_module(10, 5), torch.as_tensor(wave(3, 4, 10)), torch.as_tensor(causal_mask(4, 4))),
              "B 3, L 4, d_model 10, 5 heads, a causal keep"),
        Probe((_module(6, 2, dropout=0.3), torch.as_tensor(wave(3, 5, 6, step=1.9)), _keep(5)),
              "B 3, L 5, d_model 6, 2 heads, a keep without pattern"),
        Probe((_module(12, 3, "float32"), torch.as_tensor(wave(2, 7, 12, step=0.9, dtype=np.float32)), _keep(7)),
              "B 2, L 7, d_model 12, 3 heads, float32"),
        Probe((_module(8, 2), torch.as_tensor(wave(3, 3, 8, step=1.3)), _keep(3)), "B = L = 3, 2 heads"),
    ],
    mistakes=(
        Mistake(
            "averaged",
            "The mask is right. But these are the means over the heads, (B, L, L): nn.MultiheadAttention averages "
            "unless you say average_attn_weights=False.",
            ", average_attn_weights=False", "",
        ),
        Mistake(
            "averaged_with_an_axis",
            "The mask is right. But a new axis on the mean of the heads does not bring them back: "
            "ask for them with average_attn_weights=False.",
            function=lambda layer, x, keep: _asking(layer, x, keep)[1].mean(1, keepdim=True),
        ),
        Mistake(
            "averaged_and_copied",
            "The mask and the shape are right. But every head shows the same numbers, the mean of all: "
            "ask for each one's own with average_attn_weights=False.",
            function=lambda layer, x, keep: _asking(layer, x, keep)[1].mean(1, keepdim=True)
            .expand(-1, layer.num_heads, -1, -1),
        ),
        Mistake(
            "mask_not_turned",
            "Each head has its own weights. But True in attn_mask means blocked, and True in keep means 'may "
            "attend': pass attn_mask=~keep.",
            "~keep", "keep",
        ),
        Mistake(
            "mask_forgotten",
            "Each head has its own weights. But the mask has no effect: pass attn_mask=~keep.",
            "attn_mask=~keep, ", "",
        ),
        Mistake(
            "mask_forgotten_and_averaged",
            "This is the call that everybody copies, layer(x, x, x)[1]. But it averages the heads and knows no mask: "
            "pass attn_mask=~keep and average_attn_weights=False.",
            function=lambda layer, x, keep: layer(x, x, x)[1],
        ),
        Mistake(
            "mask_transposed",
            "Each head has its own weights, and the mask is turned to True = blocked. But its rows are queries, as "
            "in keep: pass ~keep, without .T.",
            "~keep", "~keep.T",
        ),
        Mistake(
            "key_padding_mask",
            "Each head has its own weights. But use attn_mask, not key_padding_mask: that one is (B, S), one row for "
            "each sequence; keep is (L, L), one row for each query.",
            "attn_mask=", "key_padding_mask=",
        ),
        Mistake(
            "mask_as_numbers",
            "Each head has its own weights, and 1 stands where it is blocked. But a float mask is added to the scores, "
            "and a 1 there favours what it should hide: pass the boolean ~keep.",
            function=lambda layer, x, keep: _asking(layer, x, keep, attn_mask=(~keep).to(x.dtype))[1],
        ),
        Mistake(
            "keep_as_numbers",
            "Each head has its own weights. But keep as floats is added to the scores, which hides nothing: "
            "pass the boolean ~keep.",
            function=lambda layer, x, keep: _asking(layer, x, keep, attn_mask=keep.to(x.dtype))[1],
        ),
        *(
            Mistake(
                f"{name}_as_{dtype}",
                f"Each head has its own weights. But a float mask is added to the scores, and {effect}; if its "
                f"type is not the layer's, PyTorch raises. Pass the boolean ~keep.",
                function=lambda layer, x, keep, name=name, dtype=dtype: _asking(
                    layer, x, keep, attn_mask=(keep if name == "keep" else ~keep).to(getattr(torch, dtype))
                )[1],
            )
            for dtype in ("float64", "float32")
            for name, effect in (
                ("mask", "a 1 there favours what it should hide"), ("keep", "1 and 0 hide nothing"),
            )
        ),
        Mistake(
            "training_mode",
            "Mask and options are right. But you call layer.train(), and then dropout sets weights to 0: leave the "
            "layer in the mode in which it comes.",
            function=lambda layer, x, keep: _asking(layer.train(), x, keep)[1],
        ),
        Mistake(
            "not_asked",
            "The call gives two things, and the second is the one. But with need_weights=False it is None: leave "
            "that option out.",
            function=lambda layer, x, keep: _asking(layer, x, keep, need_weights=False)[1],
            when=lambda function: _wants_no_weights(function),
        ),
        Mistake(
            "output",
            "The call is right. But it gives two things, (output, weights), and you return the first.",
            function=lambda layer, x, keep: _asking(layer, x, keep)[0],
        ),
        Mistake(
            "both",
            "The call is right. But it gives two things, (output, weights), and only the weights are asked for: "
            "the second.",
            function=lambda layer, x, keep: _asking(layer, x, keep),
        ),
        Mistake(
            "first_head",
            "The mask is right. But this is head 0 alone: keep the axis of the heads, (B, H, L, L).",
            "return weights", "return weights[:, 0]",
        ),
        Mistake(
            "first_sequence",
            "The mask is right, and each head has its own weights. But this is the first sequence alone: keep the "
            "axis of the batch, (B, H, L, L).",
            function=lambda layer, x, keep: _asking(layer, x, keep)[1][0],
        ),
        Mistake(
            "heads_first",
            "Each head has its own weights. But the batch comes first: (B, H, L, L), as the layer gives them.",
            function=lambda layer, x, keep: _asking(layer, x, keep)[1].transpose(0, 1),
        ),
        Mistake(
            "rows_and_columns",
            "Each head has its own weights. But rows are queries and columns are keys, as the layer gives them: each "
            "row adds up to 1.",
            function=lambda layer, x, keep: _asking(layer, x, keep)[1].mT,
        ),
        Mistake(
            "batch_transposed",
            "Mask and options are right. But this layer has batch_first=True, so x goes in as it is. Transposed, its "
            "tokens attend across sequences; where B = L no shape shows it.",
            function=lambda layer, x, keep: _asking(layer, x.transpose(0, 1), keep)[1],
        ),
    ),
    forms={
        "a float mask of 0 and -inf": lambda layer, x, keep: _asking(
            layer, x, keep, attn_mask=torch.zeros_like(keep, dtype=x.dtype).masked_fill(~keep, -torch.inf)
        )[1],
        "one mask for each head": lambda layer, x, keep: _asking(
            layer, x, keep, attn_mask=(~keep).repeat(len(x) * layer.num_heads, 1, 1)
        )[1],
        "without gradients": lambda layer, x, keep: torch.no_grad()(_asking)(layer, x, keep)[1],
        "by hand in NumPy": _by_hand,
        "by the course's layer": lambda layer, x, keep: layers.MultiHeadAttention.from_torch(layer)(
            x, keep=keep, need_weights=True
        )[1],
        "nested lists": lambda layer, x, keep: _asking(layer, x, keep)[1].tolist(),
    },
    hints=(
        "Self-attention is layer(x, x, x, ...). It gives two things: (output, weights).",
        "Its attn_mask says True = blocked; keep says True = may attend.",
        "One option brings the heads apart: average_attn_weights=False.",
        "_, weights = layer(x, x, x, attn_mask=~keep, average_attn_weights=False)",
    ),
    well_done="One matrix for each head. Their mean would have hidden what makes them different.",
)  # fmt: skip


# ------------------------------------------------------------------------------ a test for any layer

# What is special about a layer, and what to look at if the test misjudges it. Their order is that of
# the probes: the right layers first.
RIGHT = {
    "one_head": (
        "a right layer with one head",
        "Take d_model and num_heads from the layer: here the one head has the whole width.",
    ),
    "two_heads": (
        "a right layer with two heads",
        "Floats round: torch.allclose(a, b, atol=1e-5), not == and not torch.equal. Weights are (B, H, L, S).",
    ),
    "training_mode": (
        "a right layer with dropout, in training mode",
        "In training mode it drops other weights at each call, as it should: call layer.eval() first.",
    ),
    "shared_heads": (
        "a right layer whose four query heads share one key/value head",
        "Its k_proj and v_proj have the width of one head: cut into heads of d_model // num_heads.",
    ),
    "step_by_step": (
        "a right layer that computes step by step",
        "It rounds in other places: torch.allclose(a, b, atol=1e-5), not == and not torch.equal.",
    ),
    "pytorchs": (
        "a right layer that calls what nn.MultiheadAttention calls",
        "It rounds in other places: torch.allclose(a, b, atol=1e-5), not == and not torch.equal.",
    ),
}
WRONG = {
    "no_scale": (
        "a layer that does not divide the scores by sqrt(D)",
        "Its weights add up to 1 and make its output. Compare the output with the formula, worked out from q_proj, "
        "k_proj, v_proj and out_proj.",
    ),
    "softmax_over_queries": (
        "a layer whose softmax runs over the queries",
        "Ask for the weights, with more keys than queries: the shares of one query, a row, have to add up to 1.",
    ),
    "keep_reversed": (
        "a layer that reads keep the other way round",
        "Call it with a keep, and change what stands at the hidden keys: the output must not move.",
    ),
    "causal_upper_left": (
        "a layer whose causal mask is aligned upper-left",
        "Call it with causal=True and more keys than queries: the last query has to see all keys.",
    ),
    "merged_by_reshape": (
        "a layer that joins the heads without swapping axes back",
        "Tokens got mixed: with the queries in another order, the outputs have to come in that order, too.",
    ),
    "weights_averaged": (
        "a layer whose weights are averaged over the heads",
        "Ask for the weights and look at their shape: (B, H, L, S).",
    ),
    "dropout_in_evaluation": (
        "a layer whose dropout goes on in evaluation mode",
        "Call layer.eval(), then call the layer twice: the same output both times.",
    ),
    "value_ignored": (
        "a layer that takes its values from the key",
        "Pass three different things as query, key and value. In self-attention nothing shows.",
    ),
    "nan_in_empty_rows": (
        "a layer that gives NaN where nothing may be attended to",
        "Hide all keys from one query: it gets 0, then the output bias, and no NaN.",
    ),
    "weights_change_the_output": (
        "a layer that forgets causal when it is asked for weights",
        "Call it with causal=True, once with need_weights and once without: the same output.",
    ),
}


_PRINT = "Print each condition of your test for a right layer, say MultiHeadAttention(8, 2): which one is False?"


def _versions() -> list[Probe]:
    right, wrong = mutants.right_layers(), mutants.wrong_layers()
    return [
        *(Probe((right[name],), f"given {what}", f"{look} {_PRINT}") for name, (what, look) in RIGHT.items()),
        *(Probe((wrong[name],), f"given {what}") for name, (what, _) in WRONG.items()),
    ]


def _lets_pass(*faults: str) -> Callable:
    """A test that is right but for these faults, which it does not see."""
    return lambda layer: layer.fault in ("", *faults)


def _finds(*faults: str) -> Callable:
    """A test that sees these faults and no others."""
    return lambda layer: layer.fault not in faults


def _one_width(layer) -> bool:
    """Compares with the formula, as if there were one head."""
    query, key, value = layer_checks.inputs(layer)
    found = functional.scaled_dot_product_attention(layer.q_proj(query), layer.k_proj(key), layer.v_proj(value))
    return layer_checks.close(layer(query, key, value), layer.out_proj(found))


def _shape_of_second(layer) -> bool:
    """Looks at [1] of what a plain call gives."""
    return layer(*layer_checks.inputs(layer))[1].shape == (3, layer.num_heads, 5, 7)


def _takes_sample_for_weights(function: Callable) -> bool:
    """Would this works() accept a right layer if [1] of a plain call gave the weights?"""

    class Output(torch.Tensor):
        def __getitem__(self, at):
            weights = isinstance(at, int) and at == 1 and getattr(self, "weights", None)
            return super().__getitem__(at) if weights is None or weights is False else weights

        def __iter__(self):
            return iter((self, self.weights)) if hasattr(self, "weights") else super().__iter__()

    def add_weights(module, args, options, output):
        if isinstance(output, tuple):
            return output
        output = output.as_subclass(Output)
        output.weights = module.forward(*args, **{**options, "need_weights": True})[1]
        return output

    layers = [(copy.deepcopy(p.args[0]),) for p in WORKS.probe_list[: len(RIGHT)]]
    for (layer,) in layers:
        layer.register_forward_hook(add_weights, with_kwargs=True)
    answers = calls.call_all(function, layers, calls.SECONDS)
    return any(isinstance(o.value, bool | np.bool_ | torch.Tensor) and bool(np.all(plain(o.value))) for o in answers)


def _needs_full_width(layer) -> bool:
    """Cuts the keys into num_heads parts of d_model // num_heads."""
    layer.k_proj(torch.zeros(1, layer.d_model)).view(layer.num_heads, layer.d_model // layer.num_heads)
    return not layer.fault


WORKS = Exercise(
    id="08.works",
    needs_torch=True,
    signature="works(layer)",
    solution="mha_lesson.pytorch.layer_checks:works",
    helpers=tuple(
        f"mha_lesson.pytorch.layer_checks:{name}"
        for name in (
            "weights_are_shares", "formula_holds", "weights_make_the_output", "order_is_free", "padding_is_hidden",
            "future_is_hidden", "empty_rows_are_zero", "answers_stay_the_same", "inputs", "heads", "joined", "close",
        )
    ),
    probes=_versions,
    advice="This is the first one only: scoreboard(works) shows how your test judges each layer, and where to look.",
    mistakes=(
        Mistake(
            "cannot_fail",
            "It accepts every right layer. But it accepts the wrong ones too, so it tests nothing: the shape of the "
            "output is right in all of them. Take one property that has to hold, and compare numbers.",
            function=_finds(),
        ),
        Mistake(
            "always_false",
            "It rejects every wrong layer. But it rejects all six right ones too, from the first, a right layer with "
            f"one head. {_PRINT} Often it is == or torch.equal (floats round: torch.allclose(a, b, atol=1e-5)), or "
            "weights that are expected in another shape than (B, H, L, S).",
            function=lambda layer: False,
        ),
        Mistake(
            "weights_not_asked",
            "Looking at the weights is right. But without need_weights=True the layer gives the output alone, and [1] "
            "takes sample 1 of it: ask for the weights, _, weights = layer(query, key, value, need_weights=True).",
            function=lambda layer: _shape_of_second(layer),
            when=lambda function: _takes_sample_for_weights(function),
        ),
        Mistake(
            "inverted",
            "It tells right from wrong perfectly. But it answers the other way round: True must mean 'right'.",
            function=lambda layer: layer.fault != "",
        ),
        Mistake(
            "expects_averaged",
            "Asking for the weights and looking at their shape is right. But you expect their mean over the heads, "
            "(B, L, S), the habit of nn.MultiheadAttention; here each head has its own, (B, H, L, S).",
            function=lambda layer: layer.fault == "weights_averaged",
        ),
        Mistake(
            "one_head",
            "The formula is a good thing to compare with. But you take the whole width as one head: cut q, k and v "
            "into layer.num_heads parts first.",
            function=_one_width,
        ),
        Mistake(
            "shared_heads_crash",
            "It finds every wrong layer. But it crashes on a right one whose query heads share a key/value head, where "
            "k_proj is narrower: cut into heads of d_model // num_heads, however many they are, and repeat them.",
            function=_needs_full_width,
        ),
        Mistake(
            "training_mode",
            "It finds every wrong layer. But it rejects a right one with dropout: in training mode its outputs "
            "have to differ. Call layer.eval() before anything else.",
            function=lambda layer: not (layer.fault or (layer.training and layer.dropout)),
        ),
        Mistake(
            "shape_of_weights",
            "It accepts every right layer, and finds weights that are averaged. But a shape is right in all the other "
            "wrong ones: compare numbers, too.",
            function=_finds("weights_averaged"),
        ),
        Mistake(
            "sums_only",
            "That rows add up to 1 is a good check, and it finds a softmax over the wrong axis. But it does not "
            "look at the output, nor at masks: add a check for each.",
            function=_finds("softmax_over_queries"),
        ),
        Mistake(
            "shares_only",
            "Shape and row sums of the weights are good checks. But the output may have nothing to do with them: "
            "work it out from weights and values, and compare; then the masks.",
            function=_finds("softmax_over_queries", "weights_averaged"),
        ),
        Mistake(
            "formula_only",
            "Comparing with the formula finds what is wrong in the middle of the layer. But masks, the weights "
            "that come back, and a call that asks for them are not tried yet.",
            function=_lets_pass(
                "keep_reversed", "causal_upper_left", "weights_averaged", "nan_in_empty_rows",
                "weights_change_the_output",
            ),
        ),
        Mistake(
            "formula_of_self_attention",
            "Comparing with the formula finds most of what is wrong in the middle. But you call the layer with x "
            "alone: give it a key and a value of their own, longer than the query; then masks and weights.",
            function=_finds(
                "no_scale", "softmax_over_queries", "merged_by_reshape", "dropout_in_evaluation",
            ),
        ),
        Mistake(
            "self_attention_only",
            "It finds nearly all. But you call the layer with x alone. Give it a key and a value of their own, "
            "and more keys than queries: two wrong layers are right only in self-attention.",
            function=_lets_pass("causal_upper_left", "value_ignored"),
        ),
        Mistake(
            "without_keep",
            "It finds nearly all. But you never pass keep. Hide some keys and change what stands there; and hide "
            "all keys from one query.",
            function=_lets_pass("keep_reversed", "nan_in_empty_rows"),
        ),
        Mistake(
            "without_causal",
            "It finds nearly all. But you never pass causal=True: with more keys than queries, and once with and once "
            "without need_weights.",
            function=_lets_pass("causal_upper_left", "weights_change_the_output"),
        ),
        Mistake(
            "without_masks",
            "Everything without masks is tested well. But you pass neither keep nor causal, and four of the "
            "wrong layers are right without.",
            function=_lets_pass(
                "keep_reversed", "causal_upper_left", "nan_in_empty_rows", "weights_change_the_output"
            ),
        ),
        Mistake(
            "without_weights",
            "It finds nearly all. But you never ask for the weights: look at their shape, and whether asking changes "
            "the output.",
            function=_lets_pass("weights_averaged", "weights_change_the_output"),
        ),
        *(
            Mistake(
                f"misses_{name}",
                f"It accepts every right layer and finds nine wrong ones. But one gets through: {what}. {look}",
                function=_lets_pass(name),
            )
            for name, (what, look) in WRONG.items()
        ),
    ),
    forms={
        "against a second implementation": lambda layer: _like_step_by_step(layer),
        "a tensor": lambda layer: torch.tensor(layer_checks.works(layer)),
        "nested lists": lambda layer: [layer_checks.works(layer)][0],
        "NumPy's bool": lambda layer: np.bool_(layer_checks.works(layer)),
    },
    hints=(
        "You get a layer. Call layer.eval(), make a query (B, L, E), a key and a value (B, S, E) with "
        "torch.randn, E = layer.d_model, all sizes different, and look at what comes back.",
        "One check is a function of its own, and works(layer) says whether all hold. For example, check 8:\n"
        "```python\n"
        "def same_again(layer):                    # True if the layer passes\n"
        "    x = torch.randn(3, 5, layer.d_model)\n"
        "    output = layer(x, causal=True)        # without need_weights: the output alone\n"
        "    asked, weights = layer(x, causal=True, need_weights=True)   # with it: two things\n"
        "    return torch.allclose(output, asked, atol=1e-5)\n"
        "\n"
        "def works(layer):\n"
        "    layer.eval()\n"
        "    return all([same_again(layer)])       # the next check goes into this list\n"
        "```",
        "The weights are (B, H, L, S), one map for each head, and each row adds up to 1.",
        "The output stays the same when you call twice. And with the queries in another order, say query.flip(1), "
        "the outputs come in that order: output.flip(1).",
        "Padding: keep = (torch.arange(S) < torch.tensor(lengths)[:, None])[:, None, None, :] is (B, 1, 1, S), "
        "True = may attend. Change key and value where keep is False: no output may move.",
        "Causal, with more keys than queries: the last query sees all keys, the one before it all but the last key. "
        "Change one value, and see which outputs move.",
        "An empty row: keep (L, S), all of row 1 False. That query gets layer.out_proj of zeros, and nothing is NaN.",
        "Properties do not see a missing scale: work the output out. q, k and v are q_proj(query), k_proj(key) and "
        "v_proj(value), each cut into heads of D = layer.d_model // layer.num_heads: "
        "x.unflatten(-1, (-1, D)).transpose(1, 2), so (B, heads, L or S, D).",
        "Shared key/value heads are fewer: H = layer.num_heads, kv_heads = k.shape[1], and "
        "k = k.repeat_interleave(H // kv_heads, dim=1) brings H of them; v likewise.",
        "context = torch.nn.functional.scaled_dot_product_attention(q, k, v) is (B, H, L, D). Join the heads, "
        "context.transpose(1, 2).flatten(2), and then layer.out_proj. Compare with torch.allclose(a, b, atol=1e-5).",
    ),
    well_done="All ten found, and no right layer rejected. Keep this test: it works for any attention layer.",
)  # fmt: skip


def _like_step_by_step(layer) -> bool:
    """Right: the same answers as a second layer with the same weights, in all ways of calling."""
    layer.eval()
    other = mutants.StepByStep(layer.d_model, layer.num_heads, layer.num_kv_heads)
    other.load_state_dict(layer.state_dict())
    query, key, value = layer_checks.inputs(layer)
    keep = torch.arange(7) < torch.tensor([7, 4, 0])[:, None, None, None]
    ways = [{}, {"keep": keep}, {"causal": True}, {"keep": keep, "causal": True}]
    for way in (w | {"need_weights": asked} for w in ways for asked in (False, True)):
        have, want = layer(query, key, value, **way), other.eval()(query, key, value, **way)
        pairs = zip(have, want, strict=True) if way["need_weights"] else [(have, want)]
        if not all(layer_checks.close(a, b) for a, b in pairs):
            return False
    return True


EXERCISES = (PER_HEAD, LOAD, BLOCKED, WORKS)
