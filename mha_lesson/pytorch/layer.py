"""Multi-head attention as a PyTorch layer: the steps of lessons 01-06, with a fast middle.

    Q = X W_Q + b_Q,  K = M W_K + b_K,  V = M W_V + b_V                     M = X in self-attention
    head_h = softmax(Q_h K_g^T / sqrt(D), keep) V_g                         g = h // (H / G)
    MultiHead(X, M) = [head_1, ..., head_H] W_O + b_O

    x        (B, L, E)          what looks                  B batch, L queries, E = d_model
    memory   (B, S, K)          what is looked at           S keys, K = kdim (V = vdim for values)
    q        (B, H, L, D)       H = num_heads               D = E / H, the width of one head
    k, v     (B, G, S, D)       G = num_kv_heads            G = H unless heads share (GQA, MQA)
    keep     (L, S) or (B, 1 or H, L, S)                    boolean, True = may attend
    lengths  (B,)                                           real tokens of each, with a cache
    weights  (B, H, L, S)       each head's own, never averaged
    context  (B, H, L, D)       what each head found

The middle, from q, k, v to the context, is the layer's core (`cores/`), and can be exchanged. By
default it is `torch.nn.functional.scaled_dot_product_attention` ("SDPA"), which never builds the
weights (B, H, L, S). They are computed beside it when you ask for them, so that asking cannot
change the output: `nn.MultiheadAttention` has two ways through, and they differ
(pytorch/pytorch#41508, #118972).

Four linear maps hold the weights, and their names are those of the state_dict:

    q_proj.weight (E, E)   k_proj.weight (G·D, K)   v_proj.weight (G·D, V)   out_proj.weight (E, E)

each with its `.bias`. One wide matrix for Q, K and V saves nothing measurable on a CPU, and three
serve self- and cross-attention, kdim, vdim and shared heads alike.

For serving: `rotary_base` turns Q and K by their positions (rotary.py), and with a cache (cache.py)
only the new tokens go through; K and V of those before wait there.

Sources: Vaswani et al. 2017, equation 1 and section 3.2.2; Dao et al. 2022 (FlashAttention), the
middle; Shazeer 2019 (one key/value head, MQA) and Ainslie et al. 2023 (some of them, GQA).
"""

# Quoted word for word by tests/faults/faults.py: change both together.

import math
from numbers import Integral

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from mha_lesson.attention import MultiHeadAttention as NumpyMultiHeadAttention
from mha_lesson.attention import numpy_copy
from mha_lesson.pytorch.cores.core import (
    EVERYTHING,
    Asked,
    as_core,
    autocasting,
    is_transformed,
    needs_gradients,
    who_can,
)
from mha_lesson.pytorch.cores.sdpa import SDPACore
from mha_lesson.pytorch.heads import merge_heads, split_heads
from mha_lesson.pytorch.masks import check_keep, clear_padding
from mha_lesson.pytorch.rotary import apply_rotary, check_width, rotary_tables


class MultiHeadAttention(nn.Module):
    """Self- and cross-attention, any boolean mask, key/value heads of any number that divides.

        mha = MultiHeadAttention(d_model=768, num_heads=12)
        output = mha(x, causal=True)                                # self-attention
        output, weights = mha(x, memory, keep=keep, need_weights=True)
        output = mha(next_token, cache=cache)                       # one more token (lesson 11)

    num_kv_heads: None = num_heads; fewer are shared by neighbouring query heads (GQA); 1 is MQA.
    kdim, vdim: widths of key and value, if they are not d_model. bias: on all four maps.
    dropout: share of the weights that training sets to 0; in evaluation nothing is dropped.
    rotary_base: None, or the base of rotary positions (models use 10000); self-attention only.
    core: the middle of the layer, from q, k, v to the context: None for SDPA, or another of `cores/`,
        or a function core(q, k, v, *, keep, causal, dropout). What it cannot do is refused.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        num_kv_heads: int | None = None,
        *,
        bias: bool = True,
        dropout: float = 0.0,
        kdim: int | None = None,
        vdim: int | None = None,
        rotary_base: float | None = None,
        core=None,
        device=None,
        dtype=None,
    ):
        super().__init__()
        self.d_model, self.num_heads, self.dropout = d_model, num_heads, dropout
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.kdim = d_model if kdim is None else kdim
        self.vdim = d_model if vdim is None else vdim
        self.rotary_base = rotary_base
        core = SDPACore() if core is None else core
        self.core = core if isinstance(core, nn.Module) else as_core(core)
        self._check_sizes()
        kv_width = d_model // num_heads * self.num_kv_heads  # G·D
        options = {"bias": bias, "device": device, "dtype": dtype}
        self.q_proj = nn.Linear(d_model, d_model, **options)
        self.k_proj = nn.Linear(self.kdim, kv_width, **options)
        self.v_proj = nn.Linear(self.vdim, kv_width, **options)
        self.out_proj = nn.Linear(d_model, d_model, **options)
        self.reset_parameters()

    def reset_parameters(self):
        """Uniform weights that keep the variance both ways (Glorot & Bengio 2010), biases 0."""
        for linear in self.projections():
            nn.init.xavier_uniform_(linear.weight)
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)

    def projections(self) -> tuple[nn.Linear, nn.Linear, nn.Linear, nn.Linear]:
        """The four maps in the order query, key, value, output."""
        return self.q_proj, self.k_proj, self.v_proj, self.out_proj

    def forward(
        self,
        query: Float[Tensor, "*B L E"],
        key: Float[Tensor, "*B S K"] | None = None,
        value: Float[Tensor, "*B S V"] | None = None,
        keep: Bool[Tensor, "..."] | None = None,
        causal: bool = False,
        need_weights: bool = False,
        cache=None,
        lengths=None,
    ) -> Float[Tensor, "*B L E"] | tuple[Float[Tensor, "*B L E"], Float[Tensor, "*B H L S"]]:
        """The output; with need_weights (output, weights), the weights of each head, (B, H, L, S).

        key defaults to query and value to key. Batch first, or (L, E) without a batch.
        keep: boolean, True = may attend: (L, S), or (B, 1 or H, L, S); without a batch (1 or H, L, S).
        causal: no look ahead; the last query sees all keys. With keep, both must allow.
        cache: a KVCache (cache.py). query holds new tokens alone; they see those in the cache and
        themselves, always causally, and are kept there. Weights: one column for each position so far.
        lengths: with a cache, how many of the new tokens of each sequence are real, (B,); padding
        on the right is neither seen nor kept, and its output is the output bias alone.

        A query that may attend to nothing gets weights 0 and the output bias alone.
        The weights are those before dropout: shares that add up to 1 (pytorch/pytorch#42929).
        NaN and inf at a key that `keep` hides from every query count for nothing, in gradients too.
        At a key hidden from some queries only the others see them; this holds for the output, on a
        CPU, uncompiled. A NaN in a query stays in its row, and spoils gradients: in self-attention
        padding is a query, too, so fill it with zeros.
        """
        core = as_core(self.core)
        if cache is not None:
            self._check_serving(core, query, key, value, keep, cache)
            return self._serve(query, cache, lengths, need_weights)
        if lengths is not None:
            raise ValueError("lengths: came without a cache. Without one, hide the padding with keep.")
        key, value = self._fill_in(query, key, value)
        self._check_inputs(query, key, value)
        shape = (*query.shape[:-1], key.shape[-2])  # (*B, L, S)
        keep = check_keep(keep, (*shape[:-2], self.num_heads, *shape[-2:]), query.device)
        if query.dim() == 3:
            self._check_core(core, query, key, value, keep, causal, need_weights)
            output, weights = self._attend(query, key, value, keep, causal, need_weights)
            return (output, weights) if need_weights else output
        keep = keep[None] if keep is not None and keep.dim() == 3 else keep  # (1, H, L, S)
        self._check_core(core, query, key, value, keep, causal, need_weights)
        output, weights = self._attend(query[None], key[None], value[None], keep, causal, need_weights)
        return (output[0], weights[0]) if need_weights else output[0]

    def _attend(self, query, key, value, keep, causal, need_weights):
        core = as_core(self.core)
        if keep is not None:
            one = value is key
            key = clear_padding(key, keep)  # (B, S, K)
            value = key if one else clear_padding(value, keep)  # (B, S, V)
        q = split_heads(self.q_proj(query), self.num_heads)  # (B, H, L, D)
        k = split_heads(self.k_proj(key), self.num_kv_heads)  # (B, G, S, D)
        v = split_heads(self.v_proj(value), self.num_kv_heads)  # (B, G, S, D)
        if self.rotary_base is not None:
            q, k = self._turned(q, k, core.positions(q.shape[2], q.device))
        context = core.attend(q, k, v, keep=keep, causal=causal, dropout=self._dropout_now())  # (B, H, L, D)
        output = self.out_proj(merge_heads(context))  # (B, L, E)
        return output, core.weights(q, k, keep=keep, causal=causal) if need_weights else None

    def _dropout_now(self) -> float:
        return self.dropout if self.training else 0.0

    def _serve(self, query, cache, lengths, need_weights):
        """The new tokens over those in the cache and themselves: causal, whatever `causal` says."""
        x = query if query.dim() == 3 else query[None]  # (B, n, E)
        q = split_heads(self.q_proj(x), self.num_heads)  # (B, H, n, D)
        k = split_heads(self.k_proj(x), self.num_kv_heads)  # (B, G, n, D)
        v = split_heads(self.v_proj(x), self.num_kv_heads)  # (B, G, n, D)
        if self.rotary_base is not None:
            q, k = self._turned(q, k, cache.positions(q.shape[2]).to(q.device))
        context, weights = cache.attend(q, k, v, lengths, need_weights)  # (B, H, n, D)
        made = self.out_proj(merge_heads(context))  # (B, n, E)
        if query.dim() == 2:
            made, weights = made[0], weights[0] if need_weights else None
        return (made, weights) if need_weights else made

    def _turned(self, q, k, positions):
        """q and k of the same tokens, turned by their positions (L,) or (B, L)."""
        at_least = torch.promote_types(q.dtype, torch.float32)
        cos, sin = rotary_tables(positions, q.shape[-1], self.rotary_base, at_least)
        return apply_rotary(q, cos, sin), apply_rotary(k, cos, sin)  # (B, H, L, D), (B, G, L, D)

    # ---------------------------------------------------------------- from and to other layers

    @classmethod
    def from_torch(cls, module: nn.MultiheadAttention) -> "MultiHeadAttention":
        """A layer with copies of the weights of a `torch.nn.MultiheadAttention`.

        Same device, dtype, dropout and mode. It takes the batch first even where `module` has
        batch_first=False, the default there (pytorch/pytorch#122959): transpose(0, 1) the inputs.
        Its masks say True = blocked: keep = ~attn_mask, and keep = ~key_padding_mask[:, None, None, :].
        """
        if not isinstance(module, nn.MultiheadAttention):
            raise TypeError(f"module: expected a torch.nn.MultiheadAttention, got {type(module).__name__}.")
        if module.bias_k is not None or module.add_zero_attn:
            raise ValueError(
                "module: expected one without add_bias_kv and add_zero_attn; this course's layer "
                "has neither. Build nn.MultiheadAttention without them."
            )
        like, in_bias = module.out_proj.weight, module.in_proj_bias
        layer = cls(
            module.embed_dim, module.num_heads, bias=in_bias is not None, dropout=module.dropout,
            kdim=module.kdim, vdim=module.vdim, device=like.device, dtype=like.dtype,
        )  # fmt: skip
        if module.in_proj_weight is not None:
            weights = module.in_proj_weight.chunk(3)  # (3 E, E), rows of query, key, value one above the other
        else:
            weights = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
        biases = [None] * 3 if in_bias is None else in_bias.chunk(3)
        layer._copy_from((*weights, like), (*biases, module.out_proj.bias))
        return layer.train(module.training)

    @classmethod
    def from_numpy(cls, layer: NumpyMultiHeadAttention, device=None, dtype=None) -> "MultiHeadAttention":
        """A layer with copies of the weights of the NumPy layer, transposed to (out, in)."""
        if not isinstance(layer, NumpyMultiHeadAttention):
            raise TypeError(f"layer: expected mha_lesson.attention.MultiHeadAttention, got {type(layer).__name__}.")
        weights = [torch.tensor(w.T) for w in (layer.w_q, layer.w_k, layer.w_v, layer.w_o)]
        biases = [None if b is None else torch.tensor(b) for b in (layer.b_q, layer.b_k, layer.b_v, layer.b_o)]
        made = cls(
            layer.w_q.shape[1], layer.num_heads, bias=any(b is not None for b in biases),
            kdim=layer.w_k.shape[0], vdim=layer.w_v.shape[0], device=device, dtype=dtype or weights[0].dtype,
        )  # fmt: skip
        made._copy_from(weights, biases)
        return made

    def to_numpy(self) -> NumpyMultiHeadAttention:
        """The NumPy layer with copies of these weights, (in, out); bfloat16 becomes float32.

        It has a key and a value head for each query head, so shared ones are repeated, and no dropout.
        """
        core = as_core(self.core)
        if not core.can.exact:
            raise ValueError(
                f"core: expected full attention, all that the NumPy layer does, got the core {core.name!r}. "
                f"{who_can(lambda can: can.exact)}"
            )
        if self.rotary_base is not None:
            raise ValueError(
                f"rotary_base: expected None, got {self.rotary_base}: the NumPy layer has no rotary positions. "
                f"Turn its queries and keys with mha_lesson.steps.embeddings.rotary."
            )
        weights = [self._all_heads(linear, linear.weight) for linear in self.projections()]
        biases = [self._all_heads(linear, linear.bias) for linear in self.projections()]
        return NumpyMultiHeadAttention(*(numpy_copy(w).T for w in weights), self.num_heads, *map(numpy_copy, biases))

    def _all_heads(self, linear, x):
        """The rows of a shared head once for each of its query heads: (G·D, ...) becomes (E, ...)."""
        if x is None or linear not in (self.k_proj, self.v_proj):
            return x
        heads = x.unflatten(0, (self.num_kv_heads, -1))  # (G, D, ...)
        return heads.repeat_interleave(self.num_heads // self.num_kv_heads, dim=0).flatten(0, 1)  # (E, ...)

    @torch.no_grad()
    def _copy_from(self, weights, biases):
        for linear, weight, bias in zip(self.projections(), weights, biases, strict=True):
            linear.weight.copy_(weight)
            if linear.bias is not None and bias is not None:  # one that is missing stays 0
                linear.bias.copy_(bias)

    # ---------------------------------------------------------------- what it says and refuses

    def extra_repr(self) -> str:
        text = f"d_model={self.d_model}, num_heads={self.num_heads}"
        if self.num_kv_heads != self.num_heads:
            text += f", num_kv_heads={self.num_kv_heads}"
        if (self.kdim, self.vdim) != (self.d_model, self.d_model):
            text += f", kdim={self.kdim}, vdim={self.vdim}"
        if self.rotary_base is not None:
            text += f", rotary_base={self.rotary_base}"
        if not isinstance(self.core, SDPACore):
            text += f", core={self.core!r}"
        return text + (f", dropout={self.dropout}" if self.dropout else "")

    def _check_sizes(self):
        sizes = {"d_model": self.d_model, "num_heads": self.num_heads, "num_kv_heads": self.num_kv_heads}
        for name, size in (sizes | {"kdim": self.kdim, "vdim": self.vdim}).items():
            if not isinstance(size, Integral) or size < 1:
                raise ValueError(f"{name}: expected a whole number from 1 on, got {size!r}.")
        if self.d_model % self.num_heads:
            raise ValueError(
                f"num_heads: expected a divisor of d_model = {self.d_model}, got {self.num_heads}: "
                f"{self.d_model} / {self.num_heads} features for each head is not a whole number."
            )
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_kv_heads: expected a divisor of num_heads = {self.num_heads}, got {self.num_kv_heads}: "
                f"each key/value head serves the same number of query heads."
            )
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout: expected a share from 0 to below 1, got {self.dropout}.")
        if self.rotary_base is not None:
            check_width(self.d_model // self.num_heads, "rotary_base")
            if not 1 < self.rotary_base < math.inf:
                raise ValueError(f"rotary_base: expected None or a number above 1, got {self.rotary_base}.")
        as_core(self.core).check_dropout(self.dropout)

    def _check_core(self, core, query, key, value, keep, causal, need_weights):
        """An error if the core cannot do what is asked for: before anything is computed."""
        can = core.can
        if can is EVERYTHING:
            return
        core.check(
            Asked(
                keep, causal, query.shape[-2], key.shape[-2], self._dropout_now(),
                gradients=not can.gradients and needs_gradients(query, key, value, *self.parameters()),
                transforms=not can.transforms and is_transformed(query),
                weights=need_weights, dtype=None if autocasting(query) else self.q_proj.weight.dtype,
            )
        )  # fmt: skip

    def _check_serving(self, core, query, key, value, keep, cache):
        if not hasattr(cache, "attend"):
            raise TypeError(f"cache: expected a mha_lesson.pytorch.cache.KVCache, got {type(cache).__name__}.")
        if not core.can.cache:
            raise ValueError(
                f"cache: expected None with the core {core.name!r}, got a cache. {who_can(lambda can: can.cache)}"
            )
        core.check_cache(cache)
        if not (key is None or key is query) or not (value is None or value is query):
            raise ValueError(
                "cache: expected self-attention, got key or value. Leave both out. In cross-attention the keys "
                "never change: nothing has to be appended."
            )
        if keep is not None:
            raise ValueError(
                "keep: expected None with a cache, which hides the future itself. Prompts of unequal length: "
                "pad them on the right and pass lengths."
            )
        if self.kdim != self.d_model or self.vdim != self.d_model:
            raise ValueError(f"cache: expected kdim = vdim = d_model = {self.d_model}, got {self.kdim}, {self.vdim}.")
        if self.training and self.dropout:
            raise ValueError("cache: expected evaluation, got a layer that drops weights. Call .eval() first.")
        self._check_inputs(query, query, query)

    @staticmethod
    def _fill_in(query, key, value):
        if key is None and value is not None:
            raise ValueError("value: came without key. Pass the key too, or neither of them.")
        key = query if key is None else key
        return key, key if value is None else value

    def _check_inputs(self, query, key, value):
        if self.rotary_base is not None and key is not query:
            raise ValueError(
                "key: expected None, self-attention, in a layer with rotary positions: places in two sequences "
                "have no distance. For cross-attention make a layer without rotary_base."
            )
        widths = (("query", query, self.d_model), ("key", key, self.kdim), ("value", value, self.vdim))
        for name, x, width in widths:
            if not isinstance(x, Tensor):
                raise TypeError(
                    f"{name}: expected a torch.Tensor, got {type(x).__name__}. Pass torch.as_tensor({name})."
                )
            if x.dim() not in (2, 3) or x.shape[-1] != width:
                raise ValueError(
                    f"{name}: expected (batch, tokens, {width}), or (tokens, {width}) without a batch, "
                    f"got {tuple(x.shape)}."
                )
            if x.shape[:-2] != query.shape[:-2]:
                raise ValueError(
                    f"{name}: expected the batch of query {tuple(query.shape)}, got {tuple(x.shape)}. "
                    f"The batch comes first; one sequence for all: {name}.expand({query.shape[0]}, -1, -1)."
                )
        if value.shape[-2] != key.shape[-2]:
            raise ValueError(
                f"value: expected one row for each of the {key.shape[-2]} keys {tuple(key.shape)}, "
                f"got {tuple(value.shape)}."
            )
