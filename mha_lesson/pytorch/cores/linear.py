"""Linear attention: the sums are made before the query comes, so time is O(N) and the state has one size.

Softmax attention weighs key j for query i by exp(q_i · k_j / sqrt(D)). Replace the exponential by
a product of features, phi(q_i) · phi(k_j) with phi >= 0, and the query moves out of the sum:

              sum_j (phi(q_i) · phi(k_j)) v_j        phi(q_i)^T  sum_j phi(k_j) v_j^T
    out_i  =  -------------------------------   =   --------------------------------
                sum_j phi(q_i) · phi(k_j)              phi(q_i)^T  sum_j phi(k_j)

What was an array (L, S) is now one (D, V), whatever S is. With a column of ones beside V one sum
gives both parts: state = sum_j phi(k_j) [v_j, 1]^T, and phi(q_i)^T state = [numerator, denominator].

Causal, j runs up to i: the state grows by one token and is read at once, a recurrent network. On
its own that is N small products one after the other. So tokens come in chunks of n:

    mix    = phi(Q) state                 what came before the chunk,      (n, D) (D, V + 1)
           + tril(phi(Q) phi(K)^T) [V, 1]  inside the chunk: the triangle,  (n, n) (n, V + 1)
    state += phi(K)^T [V, 1]               for the next chunk

n = 1 is the recurrence, n = N the plain form with its (N, N) array; the answer is the same.

It is not softmax attention, and not close to it with these features: a layer must be trained with
it. What is lost is sharpness. The state has D · V numbers for any number of tokens, so it can look
up about D of them exactly; a softmax can always pick out one.

    q (B, H, L, D)   k (B, G, S, D)   v (B, G, S, V)   ->   (B, H, L, V)
    B batch, H query heads, G key/value heads (R = H / G share one), L queries, S keys
    state (B, G, D, V + 1)   keep_keys (B, S) boolean, True = a real token, False = padding

Sources: Katharopoulos et al. 2020, "Transformers are RNNs", equations 4-7 (the sums) and 16-20 (the
recurrence); Hua et al. 2022, "Transformer Quality in Linear Time", section 3 (by chunks).
"""

# Quoted word for word by tests/faults/faults.py: change both together.

from collections.abc import Callable
from numbers import Integral

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from mha_lesson.pytorch.cores.core import COURSE, Core, core_of, in_own_precision
from mha_lesson.pytorch.cores.tiled import check_inputs
from mha_lesson.pytorch.heads import share_heads
from mha_lesson.pytorch.masks import causal_mask

# ------------------------------------------------------------------------------ features


def elu_plus_one(x: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
    """x + 1 above 0, exp(x) below: always positive (Katharopoulos et al. 2020, equation 7).

    `F.elu(x) + 1` says the same, but (exp(x) - 1) + 1 is 0 in float32 from x = -17 on.
    """
    return x.clamp(max=0).exp() + x.relu()


# ------------------------------------------------------------------------------ the state


class LinearState:
    """What linear attention remembers: `sums` (B, G, D, V + 1), None before the first token.

        state = LinearState()
        outputs = state.step(q, k, v)     the prompt, (B, H, L, V)
        output = state.step(q, k, v)      one more token, (B, H, 1, V): no cache that grows

    float16 and bfloat16 are summed in float32: a sum of thousands does not fit their few digits.
    """

    def __init__(self, features: Callable = elu_plus_one):
        self.features, self.sums = features, None

    def step(
        self,
        q: Float[Tensor, "B H n D"],
        k: Float[Tensor, "B G n D"],
        v: Float[Tensor, "B G n V"],
        keep_keys: Bool[Tensor, "B n"] | None = None,
    ) -> Float[Tensor, "B H n V"]:
        """The outputs of n new tokens, which see each other causally and all that came before."""
        check_inputs(q, k, v)
        check_causal(q, k)
        query, (key, values) = self._queries(q, k.shape[1]), self._keys(k, v, keep_keys)
        with in_own_precision(q):
            mix = (query @ key.mT).tril() @ values  # (B, G, R, n, n), (B, G, R, n, V + 1)
            if self.sums is not None:
                mix = mix + query @ self.sums[:, :, None]  # (B, G, R, n, V + 1)
        self._grow(key, values)
        return divide(mix, q)  # (B, H, n, V)

    def add(self, k: Float[Tensor, "B G n D"], v: Float[Tensor, "B G n V"], keep_keys=None):
        """Take in n keys and their values."""
        self._grow(*self._keys(k, v, keep_keys))

    def read(self, q: Float[Tensor, "B H n D"]) -> Float[Tensor, "B H n V"]:
        """The outputs of n queries that see all that was taken in so far, and not each other."""
        if self.sums is None:
            raise ValueError(
                "state: expected one that has taken in keys, got an empty one. Call add(k, v) or step first."
            )
        with in_own_precision(q):
            mix = self._queries(q, self.sums.shape[1]) @ self.sums[:, :, None]  # (B, G, R, n, V + 1)
        return divide(mix, q)  # (B, H, n, V)

    def _grow(self, key, values):
        with in_own_precision(key):
            sums = (key.mT @ values)[:, :, 0]  # (B, G, D, V + 1)
        self.sums = sums if self.sums is None else self.sums + sums  # not in place: gradients need the old one

    def _queries(self, q, G):
        wide = torch.promote_types(q.dtype, torch.float32)
        return self.features(q.to(wide)).unflatten(1, (G, q.shape[1] // G))  # (B, G, R, n, D)

    def _keys(self, k, v, keep_keys):
        """phi(K) (B, G, 1, n, D) and [V, 1] (B, G, 1, n, V + 1); both are 0 at padding, whatever stood there."""
        wide = torch.promote_types(k.dtype, torch.float32)
        k, v = k.to(wide), v.to(wide)
        if keep_keys is not None:
            padding = ~check_keep_keys(keep_keys, k)[:, None, :, None]  # (B, 1, n, 1)
            k, v = k.masked_fill(padding, 0), v.masked_fill(padding, 0)  # before phi: no NaN in any gradient
        key = self.features(k)
        if keep_keys is not None:
            key = key.masked_fill(padding, 0)  # phi(0) is not 0
        return key[:, :, None], F.pad(v, (0, 1), value=1.0)[:, :, None]


def divide(mix: Float[Tensor, "B G R n W"], q: Tensor) -> Float[Tensor, "B H n V"]:
    """Numerator over denominator, the last column; 0 where nothing was seen. In q's dtype."""
    total = mix[..., -1:]  # (B, G, R, n, 1)
    total = total.masked_fill(total == 0, 1)
    return (mix[..., :-1] / total).flatten(1, 2).to(q.dtype)  # (B, H, n, V)


# ------------------------------------------------------------------------------ a whole sequence


def linear_attention(
    q: Float[Tensor, "B H L D"],
    k: Float[Tensor, "B G S D"],
    v: Float[Tensor, "B G S V"],
    causal: bool = True,
    chunk: int = 128,
    features: Callable = elu_plus_one,
    keep_keys: Bool[Tensor, "B S"] | None = None,
) -> Float[Tensor, "B H L V"]:
    """phi(Q) (sum of phi(K) V^T) / (phi(Q) sum of phi(K)), causal by chunks of tokens.

    features: phi, a function of (..., D) whose result is nowhere negative.
    keep_keys: False at padding, which then counts for nothing, in gradients too.
    A query that sees no key gets 0. The answer does not depend on chunk.

    Raises
        ValueError  causal with L != S: a `LinearState` takes the earlier tokens first.
    """
    check_inputs(q, k, v)
    if not isinstance(chunk, Integral) or chunk < 1:
        raise ValueError(f"chunk: expected a whole number of tokens from 1 on, got {chunk!r}.")
    if keep_keys is not None:
        check_keep_keys(keep_keys, k)
    state = LinearState(features)
    queries = q.split(chunk, dim=2)  # of (B, H, chunk, D), the last one may be shorter
    keys, values = k.split(chunk, dim=2), v.split(chunk, dim=2)  # of (B, G, chunk, D or V)
    keeps = [None] * len(keys) if keep_keys is None else keep_keys.split(chunk, dim=1)  # of (B, chunk)
    if causal:
        check_causal(q, k)
        return torch.cat([state.step(*part) for part in zip(queries, keys, values, keeps, strict=True)], dim=2)
    for part in zip(keys, values, keeps, strict=True):
        state.add(*part)
    return torch.cat([state.read(query) for query in queries], dim=2)  # (B, H, L, V)


# ------------------------------------------------------------------------------ what is refused


def check_causal(q, k):
    """An error where queries and keys are not the same tokens."""
    if q.shape[2] != k.shape[2]:
        raise ValueError(
            f"q, k: expected the same number of tokens for causal linear attention, got L = {q.shape[2]} "
            f"queries and S = {k.shape[2]} keys. Earlier tokens belong in a LinearState, whose step(q, k, v) "
            f"takes the new ones."
        )


def check_keep_keys(keep_keys, k) -> Bool[Tensor, "B S"]:
    """`keep_keys`, or an error: a weight is phi(q) · phi(k) here, and a mask for pairs (L, S) has no place."""
    if not isinstance(keep_keys, Tensor):
        raise TypeError(
            f"keep_keys: expected a boolean torch.Tensor (True = a real token), got {type(keep_keys).__name__}. "
            f"Pass torch.as_tensor(keep_keys)."
        )
    if keep_keys.dtype != torch.bool:
        raise ValueError(
            f"keep_keys: expected booleans (True = a real token), got {keep_keys.dtype}. Pass keep_keys.bool()."
        )
    if keep_keys.shape != (k.shape[0], k.shape[2]):
        raise ValueError(
            f"keep_keys: expected (batch, keys) = {(k.shape[0], k.shape[2])}, got {tuple(keep_keys.shape)}. "
            f"Linear attention can hide keys from all queries, not from some of them."
        )
    return keep_keys


# ------------------------------------------------------------------------------ in the layer


@core_of(linear_attention)
class LinearCore(Core):
    """`linear_attention`, with `features` for phi. A mask may hide keys from all queries, and no more."""

    name, can = "linear", COURSE["linear"]

    def __init__(self, features: Callable = elu_plus_one, chunk: int = 128):
        self.features, self.chunk = features, chunk

    def attend(self, q, k, v, *, keep, causal, dropout):
        return linear_attention(q, k, v, causal, self.chunk, self.features, keys_of(keep, k))

    def weights(self, q, k, *, keep, causal):
        """phi(q_i) · phi(k_j), each row divided by its sum."""
        wide = torch.promote_types(q.dtype, torch.float32)
        query, key = self.features(q.to(wide)), self.features(share_heads(k, q.shape[1]).to(wide))
        with in_own_precision(q):
            products = query @ key.mT  # (B, H, L, S)
        if causal:
            products = products.masked_fill(~causal_mask(*products.shape[-2:], q.device), 0)
        if keep is not None:
            products = products.masked_fill(~keep, 0)
        total = products.sum(-1, keepdim=True)
        return (products / total.masked_fill(total == 0, 1)).to(q.dtype)

    def check(self, asked):
        super().check(asked)
        if asked.causal and asked.L != asked.S:
            raise ValueError(
                f"key: expected as many keys as queries with causal=True and the core 'linear', got L = {asked.L} "
                f"queries and S = {asked.S} keys: earlier tokens belong in a LinearState. A core that can: sdpa, tiled."
            )


def keys_of(keep: Bool[Tensor, "..."] | None, k) -> Bool[Tensor, "B S"] | None:
    """A mask (1, S) or (B or 1, 1, 1, S) as one for keys, (B, S)."""
    return None if keep is None else keep.reshape(-1, keep.shape[-1]).expand(k.shape[0], k.shape[2])
