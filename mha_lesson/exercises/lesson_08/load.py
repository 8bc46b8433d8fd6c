"""Exercise 08.load."""

import numpy as np

from mha_lesson.attention import numpy_copy, params_from_torch
from mha_lesson.exercises.engine import Exercise, Mistakes, Probe, Protocol
from mha_lesson.exercises.engine.protocol import by_value_and_type
from mha_lesson.exercises.lesson_08.shared import _module


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


mistake = Mistakes()


mistake.edit(
    "not_transposed",
    """The rows are cut in the right places. But PyTorch stores (out, in) and computes x @ W.T; this course computes x @
    w: transpose all four matrices.""",
    old='{"w_q": w_q.T, "w_k": w_k.T, "w_v": w_v.T, "w_o": w_o.T}',
    new='{"w_q": w_q, "w_k": w_k, "w_v": w_v, "w_o": w_o}',
)

mistake.edit(
    "output_not_transposed",
    """Query, key and value are right. But out_proj.weight is stored (out, in) too: transpose it as well.""",
    old='"w_o": w_o.T',
    new='"w_o": w_o',
)

mistake.edit(
    "inputs_not_transposed",
    """The rows are cut in the right places, and w_o is right. But the three parts of in_proj_weight are stored (out,
    in) too: transpose them as well.""",
    old='{"w_q": w_q.T, "w_k": w_k.T, "w_v": w_v.T',
    new='{"w_q": w_q, "w_k": w_k, "w_v": w_v',
)


@mistake
def key_first(layer):
    """The rows are cut in the right places. But you took them for key, query, value; the query comes first: q, k, v."""
    return _reordered(layer, "kqv")


@mistake
def value_first(layer):
    """The rows are cut in the right places. But you took them for value, query, key; their order is q, k, v."""
    return _reordered(layer, "vqk")


@mistake
def value_second(layer):
    """The rows are cut in the right places, and w_q is right. But you took the others for value, key; their order is q,
    k, v."""
    return _reordered(layer, "qvk")


@mistake
def reversed(layer):
    """The rows are cut in the right places. But you took them for value, key, query; their order is q, k, v."""
    return _reordered(layer, "vkq")


@mistake
def columns(layer):
    """Three equal parts, good. But you cut the columns of in_proj_weight (3 E, E); query, key and value lie one above
    the other: cut the rows, axis 0. And transpose each part."""
    return _unpack(layer, np.split(numpy_copy(layer.in_proj_weight), 3, axis=1))


@mistake
def columns_transposed(layer):
    """Cut into three and transposed, good. But each part has E / 3 rows: query, key and value lie one above the other
    in in_proj_weight (3 E, E), and side by side in its transpose. Cut rows first, then transpose."""
    return _unpack(layer, np.split(numpy_copy(layer.in_proj_weight).T, 3))


@mistake
def every_third_row(layer):
    """Rows it is, and E of them for each. But q, k and v are three blocks, not every third row: the first E rows are
    the query's."""
    return _unpack(
        layer,
        [numpy_copy(layer.in_proj_weight)[i::3].T for i in range(3)],
        [numpy_copy(layer.in_proj_bias)[i::3] for i in range(3)],
    )


@mistake
def packed_by_head(layer):
    """Some models pack q, k and v of head 0, then those of head 1, and so on. But nn.MultiheadAttention packs the query
    of all heads, then the key, then the value: three blocks of E rows."""
    return _unpack(
        layer,
        numpy_copy(layer.in_proj_weight)
        .reshape(layer.num_heads, 3, -1, layer.embed_dim)
        .transpose(1, 3, 0, 2)
        .reshape(3, layer.embed_dim, -1),
        numpy_copy(layer.in_proj_bias).reshape(layer.num_heads, 3, -1).swapaxes(0, 1).reshape(3, -1),
    )


for order in ("kqv", "vqk", "qvk", "vkq", "kvq"):
    mistake.function(
        f"biases_{order}",
        f"The matrices are right. But you cut in_proj_bias as {', '.join(order)}; its order is that of the weights: q, "
        "k, v. (In a new layer all of it is 0, which hides this.)",
        lambda layer, order=order: _unpack(
            layer, biases=[params_from_torch(layer)[f"b_{'qkv'[order.index(n)]}"] for n in "qkv"]
        ),
    )


@mistake
def one_bias_for_all(layer):
    """The matrices are right. But all three biases are the first third of in_proj_bias: it is packed as the weights
    are. (In a new layer all of them are 0, which hides this.)"""
    return _unpack(layer, biases=[numpy_copy(layer.in_proj_bias)[: layer.embed_dim]] * 3)


@mistake
def biases_zero(layer):
    """The matrices are right. But the biases are 0 only in a new layer: take them from in_proj_bias and
    out_proj.bias."""
    return {n: p * 0 if n[0] == "b" else p for n, p in params_from_torch(layer).items()}


@mistake
def output_bias_zero(layer):
    """All is right up to the last bias. But b_o is 0 only in a new layer: it is out_proj.bias."""
    return _unpack(layer, b_o=np.zeros(layer.embed_dim))


LOAD = Exercise(
    id="08.load",
    needs_torch=True,
    signature="load(layer)",
    solution=params_from_torch,
    protocol=Protocol(differ=by_value_and_type),
    helpers=(numpy_copy,),
    probes=lambda: [
        Probe((_module(6, 2),), "d_model 6, 2 heads, float64"),
        Probe((_module(15, 5),), "d_model 15, 5 heads, float64"),
        Probe((_module(12, 3, "float32"),), "d_model 12, 3 heads, float32"),
    ],
    mistakes=mistake.all,
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
        "Print the names and shapes in layer.state_dict(). in_proj_weight is (3 E, E): query, key, value, one above "
        "the other.",
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
