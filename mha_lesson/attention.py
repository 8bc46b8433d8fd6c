"""The steps of lessons 01-06 put together: multi-head attention in NumPy.

    Q = X W_Q,  K = X W_K,  V = X W_V                                  lesson 02
    Attention(Q, K, V) = softmax(Q K^T / sqrt(D), keep) V              lessons 03-05
    head_h = Attention(Q_h, K_h, V_h)
    MultiHead(X) = [head_1, ..., head_H] W_O + b_O                     lesson 06

Shapes: B batch, H heads, L queries, S keys, E model width, D = E / H head width.

Source: Vaswani et al. 2017, "Attention Is All You Need", equation 1 and section 3.2.2.
"""

# Quoted word for word by exercises/lesson_06/mha.py, exercises/lesson_08/load.py and tests/faults/faults.py: change
# them together.

from dataclasses import dataclass
from typing import Any

import numpy as np

from mha_lesson.blocked import blocked_attention as blocked_attention
from mha_lesson.steps.heads import merge_heads, output_projection, split_heads
from mha_lesson.steps.masks import as_keep, check_keep
from mha_lesson.steps.projections import project
from mha_lesson.steps.scores import attention_scores
from mha_lesson.steps.softmax import masked_softmax
from mha_lesson.steps.typing import Array, Float


def scaled_dot_product_attention(
    query: Float[Array, "*any L D"],
    key: Float[Array, "*any S D"],
    value: Float[Array, "*any S V"],
    keep=None,
) -> tuple[Float[Array, "*any L V"], Float[Array, "*any L S"]]:
    """Each query's mix of the values, and the weights of that mix: (output, weights).

    keep: boolean, broadcastable to (..., L, S), True = may attend; None = all may.
    A query that may attend to nothing gets weights 0 and output 0.
    """
    if value.shape[-2] != key.shape[-2]:
        raise ValueError(
            f"value: expected one row for each of the {key.shape[-2]} keys {key.shape}, got {value.shape}."
        )
    with np.errstate(invalid="ignore", over="ignore"):  # rubbish in padding is masked in the next lines
        scores = attention_scores(query, key)  # (..., L, S)
    keep = np.True_ if keep is None else check_keep(keep, scores.shape)
    weights = masked_softmax(scores, keep)  # (..., L, S)
    return weighted_sum(weights, value, keep), weights


def weighted_sum(
    weights: Float[Array, "*any L S"], value: Float[Array, "*any S V"], keep=np.True_
) -> Float[Array, "*any L V"]:
    """weights @ value, in which a forbidden value counts for nothing, even if it is NaN or inf.

    0 * NaN is NaN, so a weight of 0 alone does not erase what stands in the padding
    (pytorch/pytorch#101967). A value that a query may attend to is never hidden.
    """
    if np.isfinite(value).all():
        return weights @ value  # (..., L, V)
    allowed = np.broadcast_to(as_keep(keep), weights.shape)[..., None]  # (..., L, S, 1)
    with np.errstate(invalid="ignore"):
        terms = weights[..., None] * value[..., None, :, :]  # (..., L, S, V)
    return np.where(allowed, terms, 0).sum(axis=-2)  # (..., L, V)


def multi_head_attention(
    x: Float[Array, "*any L E"], params: dict, num_heads: int, keep=None
) -> Float[Array, "*any L E"]:
    """Self-attention with several heads, all of it in eight lines.

    params: w_q, w_k, w_v, w_o (E, E), applied as x @ w, and b_q, b_k, b_v, b_o (E,).
    """
    query = split_heads(x @ params["w_q"] + params["b_q"], num_heads)  # (..., H, L, D)
    key = split_heads(x @ params["w_k"] + params["b_k"], num_heads)
    value = split_heads(x @ params["w_v"] + params["b_v"], num_heads)
    output, _ = scaled_dot_product_attention(query, key, value, keep)  # (..., H, L, D)
    context = merge_heads(output)  # (..., L, E)
    return context @ params["w_o"] + params["b_o"]  # (..., L, E)


@dataclass(frozen=True, eq=False)
class MultiHeadAttention:
    """The layer with its weights: self-attention, cross-attention, any mask.

        mha = MultiHeadAttention.random(d_model=12, num_heads=3)
        output, weights = mha(x)                       # self-attention
        output, weights = mha(x, memory, keep=keep)    # cross-attention

    Weights are (in, out). w_k and w_v may have other input widths than w_q. Biases may be None.
    """

    w_q: Float[Array, "E E"]
    w_k: Float[Array, "K E"]
    w_v: Float[Array, "V E"]
    w_o: Float[Array, "E E"]
    num_heads: int
    b_q: Float[Array, "E"] | None = None
    b_k: Float[Array, "E"] | None = None
    b_v: Float[Array, "E"] | None = None
    b_o: Float[Array, "E"] | None = None

    def __post_init__(self):
        if self.num_heads < 1 or self.w_q.shape[1] % self.num_heads:
            raise ValueError(f"num_heads: expected a divisor of d_model = {self.w_q.shape[1]}, got {self.num_heads}.")

    def __call__(
        self,
        query: Float[Array, "*any L E"],
        key: Float[Array, "*any S K"] | None = None,
        value: Float[Array, "*any S V"] | None = None,
        keep=None,
    ) -> tuple[Float[Array, "*any L E"], Float[Array, "*any H L S"]]:
        """(output, weights): weights come back for each head, (B, H, L, S), never averaged.

        key defaults to query and value to key. query is (B, L, E), or (L, E) without a batch.
        """
        if key is None and value is not None:
            raise ValueError("value: came without key. Pass the key too, or neither of them.")
        key = query if key is None else key
        value = key if value is None else value
        if value.shape[-2] != key.shape[-2]:
            raise ValueError(
                f"value: expected one row for each of the {key.shape[-2]} keys {key.shape}, got {value.shape}."
            )
        q = split_heads(project(query, self.w_q, self.b_q), self.num_heads)  # (B, H, L, D)
        k = split_heads(project(key, self.w_k, self.b_k), self.num_heads)  # (B, H, S, D)
        v = split_heads(project(value, self.w_v, self.b_v), self.num_heads)  # (B, H, S, D)
        heads, weights = scaled_dot_product_attention(q, k, v, keep)  # (B, H, L, D), (B, H, L, S)
        return output_projection(merge_heads(heads), self.w_o, self.b_o), weights

    @classmethod
    def random(cls, d_model: int, num_heads: int, seed: int = 0) -> "MultiHeadAttention":
        """Weights of variance 1 / d_model, small biases: the same for the same seed."""
        draw = np.random.default_rng(seed).standard_normal
        w_q, w_k, w_v, w_o = draw((4, d_model, d_model)) / np.sqrt(d_model)
        b_q, b_k, b_v, b_o = 0.1 * draw((4, d_model))
        return cls(w_q, w_k, w_v, w_o, num_heads, b_q, b_k, b_v, b_o)

    @classmethod
    def from_params(cls, params: dict, num_heads: int) -> "MultiHeadAttention":
        """From a dictionary w_q, w_k, w_v, w_o, b_q, b_k, b_v, b_o, as `multi_head_attention` takes."""
        return cls(num_heads=num_heads, **params)

    @classmethod
    def from_torch(cls, module) -> "MultiHeadAttention":
        """A copy of the weights of a `torch.nn.MultiheadAttention`, transposed to (in, out).

        This layer always takes the batch first, and has no dropout.
        """
        if module.bias_k is not None or module.add_zero_attn:
            raise ValueError(
                "module: expected one without add_bias_kv and add_zero_attn; this course's layer "
                "has neither. Build nn.MultiheadAttention without them."
            )
        return cls.from_params(params_from_torch(module), module.num_heads)


def params_from_torch(module) -> dict:
    """The weights of a `torch.nn.MultiheadAttention` as `multi_head_attention` takes them.

    It stores (out, in), the rows of query, key and value one above the other. Here they are (in, out).
    """
    if module.in_proj_weight is not None:  # (3 E, E)
        w_q, w_k, w_v = np.split(numpy_copy(module.in_proj_weight), 3)
    else:  # kdim or vdim is not d_model
        w_q, w_k, w_v = map(numpy_copy, (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight))
    b_q, b_k, b_v = [None] * 3 if module.in_proj_bias is None else np.split(numpy_copy(module.in_proj_bias), 3)
    w_o, b_o = numpy_copy(module.out_proj.weight), numpy_copy(module.out_proj.bias)
    weights = {"w_q": w_q.T, "w_k": w_k.T, "w_v": w_v.T, "w_o": w_o.T}
    return {**weights, "b_q": b_q, "b_k": b_k, "b_v": b_v, "b_o": b_o}


def numpy_copy(tensor) -> Any:
    """A NumPy copy of a torch tensor, None for None; half types that NumPy lacks become float32."""
    if tensor is None:
        return None
    tensor = tensor.detach().cpu()
    try:
        return np.array(tensor.numpy())
    except TypeError:
        return np.array(tensor.float().numpy())
