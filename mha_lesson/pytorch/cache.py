"""Serving: the keys and values of the tokens so far are kept, and each token goes through once.

    step t without a cache    all t tokens go through again         work t for each letter
    step t with one           token t alone; K, V of the rest wait  work 1, memory 2·B·G·t·D numbers

Causal attention allows it: what came before never sees what comes after, so old keys and values
do not change. Queries are needed once and are not kept.

One rule covers all cases. Every slot of the memory holds the POSITION of its token in `places`,
-1 if it is empty. A query at position p sees the slots with

    place >= 0   and   place <= p   and   place > p - window

Sequences of unequal length, several new tokens at once and a memory that is written round and
round all follow from it; nothing depends on the order of the slots.

    k, v     (B, G, n, D)     of the n new tokens     B batch, G key/value heads, D head width
    keys     (B, G, S, D)     of all that is kept     S slots in use, C slots in all (capacity)
    places   (B, C)           the position of the token in each slot
    q        (B, H, n, D)     new queries             H = G·R heads, R neighbours share a key head
    keep     (n, S) or (B, 1, n, S)                   boolean, True = may attend

Where slots are:

    without window    slot p for position p; the memory doubles when it is full
    with window       slot p mod C: the oldest are written over, and memory never grows. For `chunk`
                      tokens at once C >= window + chunk - 1, or the first of them would miss keys

Shared key heads (GQA, MQA) make the memory smaller by H / G. Time follows only if each key is read
once: `fold_groups` makes the R query heads that share a key head rows of one query.

Sources: Shazeer 2019 (one key/value head, and why decoding waits for memory); Ainslie et al. 2023
(GQA); Beltagy et al. 2020, section 3.1 (window); Leviathan et al. 2023 (speculative decoding: what
`truncate` is for). A triangle in the wrong corner: pytorch/pytorch#103082, hyprstream/hyprstream#1521.
"""

# Quoted word for word by tests/faults/faults.py: change both together.

from numbers import Integral

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mha_lesson.pytorch.cores.sdpa import attention, attention_weights
from mha_lesson.pytorch.masks import causal_mask, check_keep, joint_mask

CHUNK = 64  # new tokens at once with a window, unless you say otherwise
FEW = 8  # up to so many queries, folding was measured faster than SDPA's enable_gqa

# ------------------------------------------------------------------------------ shared heads


def fold_groups(q: Float[Tensor, "B H L D"], num_kv_heads: int) -> Float[Tensor, "B G RL D"]:
    """The R = H / G query heads that share a key head become rows of one query: nothing moves.

    Neighbours share: heads 0 ... R - 1 have key head 0 (onnx/onnx#7274). First all rows of the
    first of them, then all rows of the second.
    """
    heads, _, _ = _check_groups(q, num_kv_heads)
    return q.unflatten(1, (num_kv_heads, heads // num_kv_heads)).flatten(2, 3)  # (B, G, R, L, D), (B, G, R·L, D)


def unfold_groups(context: Float[Tensor, "B G RL D"], num_heads: int) -> Float[Tensor, "B H L D"]:
    """The way back: (B, G, R·L, D) to (B, H, L, D)."""
    G, rows = context.shape[1:3]
    if num_heads % G or rows % (num_heads // G):
        raise ValueError(
            f"num_heads: expected a multiple of the {G} key/value heads that cuts {rows} rows evenly, got {num_heads}."
        )
    R = num_heads // G
    return context.unflatten(2, (R, rows // R)).flatten(1, 2)  # (B, G, R, L, D), (B, H, L, D)


def grouped_attention(
    q: Float[Tensor, "B H L D"],
    k: Float[Tensor, "B G S D"],
    v: Float[Tensor, "B G S V"],
    keep=None,
    causal: bool = False,
) -> Float[Tensor, "B H L V"]:
    """softmax(Q K^T / sqrt(D), keep and causal) V, each key read once for all heads that share it.

    The same numbers as `attention`. With one query and 8192 keys the time is near G / H of that
    with H key heads. With many queries there is nothing to win: see FEW.
    """
    H, L, _ = _check_groups(q, k.shape[1])
    keep = check_keep(keep, (*q.shape[:3], k.shape[2]), q.device)
    keep = joint_mask(keep, causal, L, k.shape[2], q.device)
    rows = fold_groups(q, k.shape[1])  # (B, G, R·L, D)
    context = attention(rows, k, v, _fold_keep(keep, H, k.shape[1], L))  # (B, G, R·L, V)
    return unfold_groups(context, H)


def _fold_keep(keep, H, G, L):
    """keep (L, S) or (B, 1 or H, L, S) for folded queries: (R·L, S) or (B, 1 or G, R·L, S)."""
    for_each_head = keep is not None and keep.dim() == 4 and keep.shape[1] > 1
    if keep is None or (keep.shape[-2] == 1 and not for_each_head):
        return keep  # one row for all queries
    if for_each_head:
        keep = keep.expand(-1, -1, L, -1)
        return keep.unflatten(1, (G, H // G)).flatten(2, 3)  # (B, G, R, L, S), (B, G, R·L, S)
    return torch.cat([keep] * (H // G), dim=-2)  # all rows of the first head, then of the second, ...


def _check_groups(q, num_kv_heads):
    if q.dim() != 4 or num_kv_heads < 1 or q.shape[1] % num_kv_heads:
        raise ValueError(
            f"q: expected (B, H, L, D), and H a multiple of the {num_kv_heads} key/value heads, got {tuple(q.shape)}."
        )
    return q.shape[1:]


# ------------------------------------------------------------------------------ the cache


class KVCache:
    """Keys and values of the tokens so far, of one attention layer. For inference: no gradients.

        cache = KVCache()
        with torch.no_grad():
            output = mha(prompt, cache=cache)          # all of the prompt
            output = mha(next_token, cache=cache)      # (B, 1, E), and so on

    capacity: slots for each sequence, taken at the first append; None = grows by doubling.
        Without window, more tokens than that are an error.
    window: each token sees so many at most, itself and those before it. Memory stays the same.
    chunk: most new tokens in one `append`, and most that `truncate` takes back with a window;
        `attend` feeds longer ones in pieces. None: no limit; with a window 64, or the window if
        that is less.
    """

    def __init__(self, *, capacity: int | None = None, window: int | None = None, chunk: int | None = None):
        for name, size in (("capacity", capacity), ("window", window), ("chunk", chunk)):
            if size is not None and (not isinstance(size, Integral) or isinstance(size, bool) or size < 1):
                raise ValueError(f"{name}: expected a whole number from 1 on, or None, got {size!r}.")
        if window is not None:
            if chunk is None:
                chunk = min(window, CHUNK) if capacity is None else max(capacity - window + 1, 1)
            needed = window + chunk - 1
            capacity = needed if capacity is None else capacity
            if capacity < needed:
                raise ValueError(
                    f"capacity: expected window + chunk - 1 = {needed} slots or more (the first of {chunk} new "
                    f"tokens still sees {window - 1} before it), got {capacity}. Make chunk smaller, or leave "
                    f"capacity out."
                )
        self.window, self.chunk = window, chunk
        self._wanted = capacity  # None: as many as come
        self.clear()

    def clear(self) -> None:
        """Forget everything, and give the memory back: the next append may be another batch."""
        self._keys = self._values = self._places = None
        self._counts: list[int] = []  # tokens of each sequence; on no device, so that nobody waits for it
        self._top = 0  # the most tokens that any sequence has had: slots after it were never written

    # ---------------------------------------------------------------- what it holds

    @property
    def length(self) -> Int[Tensor, "B"]:
        """Tokens so far of each sequence, those that left the window too; empty before the first append."""
        return torch.tensor(self._counts, dtype=torch.long, device=self._device())

    def positions(self, n: int) -> Int[Tensor, "*any n"]:
        """The positions of the next n tokens: (n,), or (B, n) if the lengths differ. Ask before append."""
        after = torch.arange(n, device=self._device())
        if self._even():
            return after + self._first()  # (n,)
        return self.length[:, None] + after  # (B, n)

    @property
    def capacity(self) -> int:
        """Slots for each sequence: those that memory is taken for, before that those it will be taken for."""
        return (self._wanted or 0) if self._keys is None else self._keys.shape[2]

    @property
    def nbytes(self) -> int:
        """Memory of keys and values: 2·B·G·capacity·D numbers; 0 before the first append."""
        return 0 if self._keys is None else self._keys.nbytes + self._values.nbytes

    def __repr__(self) -> str:
        made = f"length={self._counts}, capacity={self.capacity}"
        made += "" if self.window is None else f", window={self.window}"
        return f"KVCache({made}" + ("" if self.chunk is None else f", chunk={self.chunk}") + ")"

    def _device(self):
        return None if self._keys is None else self._keys.device

    def _even(self):
        return len(set(self._counts)) < 2

    def _first(self):
        return self._counts[0] if self._counts else 0

    # ---------------------------------------------------------------- one step

    def attend(self, q, k, v, lengths=None, need_weights: bool = False):
        """(context (B, H, n, D), weights or None) of new tokens over all tokens so far and themselves.

        Longer than `chunk`, they go through in pieces. Weights are (B, H, n, most tokens so far):
        column p is the token at position p, whatever slot holds it. Rows of padding are 0.
        """
        new = self._check(k, v, lengths)
        self._check_query(q, k)
        n = k.shape[2]
        if self.chunk is None or n <= self.chunk:
            return self._attend(q, k, v, new, need_weights)
        found = []
        for start in range(0, n, self.chunk):
            size = min(self.chunk, n - start)
            q_piece, k_piece, v_piece = (x[:, :, start : start + size] for x in (q, k, v))
            some = [min(max(count - start, 0), size) for count in new]
            found.append(self._attend(q_piece, k_piece, v_piece, some, need_weights))
        contexts, weights = zip(*found, strict=True)
        if need_weights:  # later pieces have more columns
            weights = torch.cat([_widen(w, weights[-1].shape[-1]) for w in weights], dim=2)
        return torch.cat(contexts, dim=2), weights if need_weights else None

    @torch.no_grad()
    def _attend(self, q, k, v, new, need_weights):
        keys, values, keep = self._append(k, v, new)
        if q.shape[1] != k.shape[1] and q.shape[2] <= FEW:
            context = grouped_attention(q, keys, values, keep)  # (B, H, n, D)
        elif self.window is None and keep is not None and keep.dim() == 2:  # the plain triangle:
            context = attention(q, keys, values, causal=True)  # at the first call SDPA needs no mask for it
        else:
            context = attention(q, keys, values, keep)
        return context, self._weights(q, keys, keep) if need_weights else None

    def _weights(self, q, keys, keep):
        weights = attention_weights(q, keys, keep)  # (B, H, n, S)
        if self.window is None:
            return weights
        column = self._places[:, None, None, : keys.shape[2]].clamp(min=0)  # (B, 1, 1, S); an empty slot adds 0
        full = weights.new_zeros(*weights.shape[:3], max(self._counts, default=0))
        return full.scatter_add(-1, column.expand_as(weights), weights)  # (B, H, n, most tokens)

    def append(self, k: Float[Tensor, "B G n D"], v: Float[Tensor, "B G n V"], lengths=None):
        """Keep new keys and values. Returns (keys, values, keep): all that the new queries may attend to.

        keys (B, G, S, D), values (B, G, S, V): views of the memory, good until the next call.
        keep: None if every new query may see every key; else (n, S), or (B, 1, n, S) if the lengths
        differ. True = may attend. Without window slot p holds position p, so the last query sees all.
        lengths (B,): how many of the n new tokens of each sequence are real, for prompts of unequal
        length, padded on the right. Padding is not kept; its queries see nothing.

        Whatever is refused leaves the cache as it was.
        """
        new = self._check(k, v, lengths)
        if self.chunk is not None and k.shape[2] > self.chunk:
            raise ValueError(
                f"k: expected at most chunk = {self.chunk} new tokens, got {k.shape[2]}. Append them in pieces, "
                f"call attend, which does so, or make the cache with KVCache(chunk={k.shape[2]}, ...)."
            )
        return self._append(k, v, new)

    @torch.no_grad()
    def _append(self, k, v, new):
        asked = self.positions(k.shape[2]).to(k.device)  # (n,) or (B, n)
        starts = self._counts or [0] * k.shape[0]
        counts = [start + count for start, count in zip(starts, new, strict=True)]
        self._make_room(k, v, max(counts))
        n = k.shape[2]
        if len(set(starts)) == 1 and min(new) == n:
            self._write_even(k, v, starts[0], asked)
        else:
            self._write_each(k, v, torch.tensor(new, device=k.device), asked.expand(len(new), n))
        self._counts, self._top = counts, max(self._top, *counts)
        used = max(counts) if self.window is None else min(self._top, self.capacity)  # S
        return self._keys[:, :, :used], self._values[:, :, :used], self._keep(asked, new, starts, used)

    def _keep(self, asked, new, starts, used) -> Bool[Tensor, "..."] | None:
        n = asked.shape[-1]
        even = len(set(starts)) == 1 and min(new) == n
        if even and self.window is None:
            return None if n == 1 else causal_mask(n, used, asked.device)  # (n, S)
        if even and n == 1 and used <= self.window and self._counts[0] == self._top:
            return None
        place = self._places[:1, :used] if even else self._places[:, None, None, :used]  # (1, S) or (B, 1, 1, S)
        query = asked[:, None] if even else asked.expand(len(new), n)[:, None, :, None]  # (n, 1) or (B, 1, n, 1)
        keep = (place >= 0) & (place <= query)  # (n, S) or (B, 1, n, S)
        if self.window is not None:
            keep &= place > query - self.window
        return keep if even else keep & _real(new, n, keep.device)[:, None, :, None]

    # ---------------------------------------------------------------- memory

    def _make_room(self, k, v, needed):
        if self._keys is None:
            slots = self._wanted or needed
            keys, values = _zeros(k, slots), _zeros(v, slots)
            with torch.inference_mode(False):
                self._places = torch.full((k.shape[0], slots), -1, device=k.device)
            self._keys, self._values = keys, values
        elif self.window is None and needed > self.capacity:
            slots, kept = max(needed, 2 * self.capacity), self.capacity
            keys, values = _zeros(k, slots), _zeros(v, slots)
            keys[:, :, :kept], values[:, :, :kept] = self._keys, self._values
            with torch.inference_mode(False):
                places = torch.full((k.shape[0], slots), -1, device=k.device)
            places[:, :kept] = self._places
            self._keys, self._values, self._places = keys, values, places

    def _write_even(self, k, v, start, asked):
        """All sequences are equally long: the new tokens lie side by side, in one piece or in two."""
        n, done = k.shape[2], 0
        while done < n:
            slot = (start + done) % self.capacity
            size = min(n - done, self.capacity - slot)
            here, there = slice(slot, slot + size), slice(done, done + size)
            self._keys[:, :, here], self._values[:, :, here] = k[:, :, there], v[:, :, there]
            self._places[:, here] = asked[there]
            done += size

    def _write_each(self, k, v, new, asked):
        """Each real token into the slot of its own position; padding is left out, NaN and all."""
        row, token = (torch.arange(k.shape[2], device=k.device) < new[:, None]).nonzero(as_tuple=True)  # (M,) each
        place = asked[row, token]  # (M,)
        slot = place % self.capacity
        self._keys[row, :, slot] = k[row, :, token]  # (M, G, D)
        self._values[row, :, slot] = v[row, :, token]
        self._places[row, slot] = place

    # ---------------------------------------------------------------- take back, reorder

    @torch.no_grad()
    def truncate(self, lengths) -> None:
        """Take back the last tokens: `lengths`, (B,) or one number for all, is what remains.

        Speculative decoding appends guesses and takes back the wrong ones. With a window at most
        as many as the ring still holds what they wrote over: `chunk` of them in any case.
        """
        wanted = self._wanted_counts(lengths)
        remain = torch.tensor(wanted, device=self._device())[:, None]  # (B, 1)
        if self.window is not None:  # the next token sees window - 1 before it: are they all still here?
            seen = (self._places < remain) & (self._places > remain - self.window) & (self._places >= 0)
            missing = [min(n, self.window - 1) - have for n, have in zip(wanted, seen.sum(1).tolist(), strict=True)]
            if any(missing):
                raise ValueError(
                    f"lengths: expected to take back at most chunk = {self.chunk} tokens (older keys of the window "
                    f"are written over), got {wanted} of {self._counts}. Make the cache with a larger chunk."
                )
        row, slot = (self._places >= remain).nonzero(as_tuple=True)  # (M,) each
        # Erased, too: a NaN that nobody may see is still NaN times weight 0.
        self._keys[row, :, slot] = 0
        self._values[row, :, slot] = 0
        self._places[row, slot] = -1
        self._counts = wanted

    @torch.no_grad()
    def select(self, rows) -> None:
        """The sequences with these numbers, in this order: beam search copies some and drops others."""
        rows = torch.as_tensor(rows, device=self._device())
        B = len(self._counts)
        if rows.dim() != 1 or rows.dtype not in INTEGERS or not len(rows) or rows.min() < 0 or rows.max() >= B:
            raise ValueError(
                f"rows: expected numbers of sequences from 0 to {B - 1}, for example [0, 0, 2], "
                f"got {rows.tolist()}." + ("" if B else " Nothing was appended yet.")
            )
        with torch.inference_mode(False):
            rows = rows.long().clone()
            keys, values, places = self._keys[rows], self._values[rows], self._places[rows]
        self._keys, self._values, self._places = keys, values, places
        self._counts = [self._counts[b] for b in rows.tolist()]

    def _wanted_counts(self, lengths):
        if not self._counts:
            raise ValueError("lengths: nothing was appended yet, so nothing can be taken back.")
        if isinstance(lengths, Integral):
            lengths = [lengths] * len(self._counts)
        return _whole_numbers("lengths", lengths, self._counts, "the tokens so far")

    # ---------------------------------------------------------------- what it refuses

    def _check(self, k, v, lengths) -> list[int]:
        """The new tokens of each sequence, if all is right. Nothing is changed before this."""
        for name, x in (("k", k), ("v", v)):
            if not isinstance(x, Tensor):
                raise TypeError(f"{name}: expected a torch.Tensor, got {type(x).__name__}.")
            if x.dim() != 4 or not x.is_floating_point():
                raise ValueError(f"{name}: expected floats (B, G, n, D), got {x.dtype} of shape {tuple(x.shape)}.")
            if x.requires_grad and torch.is_grad_enabled():
                raise ValueError(NO_GRADIENTS.format(name=name))
        if v.shape[:3] != k.shape[:3]:
            raise ValueError(f"v: expected batch, heads and tokens of k {tuple(k.shape)}, got {tuple(v.shape)}.")
        for name, x, kept in (("k", k, self._keys), ("v", v, self._values)):
            if kept is None:
                kept = k  # both on one device, of one dtype
            elif (x.shape[:2], x.shape[3]) != (kept.shape[:2], kept.shape[3]):
                B, G, _, D = kept.shape
                raise ValueError(
                    f"{name}: expected ({B}, {G}, new tokens, {D}) as before, got {tuple(x.shape)}. "
                    f"For another batch call clear(); for fewer or other sequences select(rows)."
                )
            if (x.dtype, x.device) != (kept.dtype, kept.device):
                raise ValueError(
                    f"{name}: expected {kept.dtype} on {kept.device} as the cache holds, got {x.dtype} on {x.device}. "
                    f"Pass {name}.to({kept.dtype}), or call clear()."
                )
        B, G, n, D = k.shape
        if not (B and G and D):
            raise ValueError(f"k: expected at least one sequence, head and channel, got {tuple(k.shape)}.")
        new = [n] * B if lengths is None else _whole_numbers("lengths", lengths, [n] * B, "the new tokens")
        needed = max(have + more for have, more in zip(self._counts or [0] * B, new, strict=True))
        if self.window is None and self._wanted is not None and needed > self._wanted:
            raise ValueError(
                f"k: expected at most capacity = {self._wanted} tokens in all, got {needed}. Make the cache with "
                f"KVCache(capacity={needed}) or more; KVCache() grows; KVCache(window=...) forgets the oldest."
            )
        return new

    @staticmethod
    def _check_query(q, k):
        _check_groups(q, k.shape[1])
        fits = (q.shape[0], *q.shape[2:], q.dtype, q.device) == (k.shape[0], *k.shape[2:], k.dtype, k.device)
        if not fits:
            raise ValueError(
                f"q: expected the batch, tokens and width of k {tuple(k.shape)}, {k.dtype} on {k.device}, "
                f"got {tuple(q.shape)}, {q.dtype} on {q.device}."
            )
        if q.requires_grad and torch.is_grad_enabled():
            raise ValueError(NO_GRADIENTS.format(name="q"))


INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
NO_GRADIENTS = (
    "{name}: expected no gradient, got a tensor that requires one. A cache is written in place, for inference: "
    "call the layer within torch.no_grad(). To train, pass whole sequences without a cache."
)


def _whole_numbers(name, given, most, what) -> list[int]:
    """`given` (B,) as a list, each from 0 to its own `most`."""
    numbers = torch.as_tensor(given)
    if numbers.shape != (len(most),) or numbers.dtype not in INTEGERS:
        raise ValueError(
            f"{name}: expected {len(most)} whole numbers, one for each sequence, "
            f"got {numbers.dtype} of shape {tuple(numbers.shape)}."
        )
    numbers = numbers.tolist()
    if any(not 0 <= number <= bound for number, bound in zip(numbers, most, strict=True)):
        raise ValueError(f"{name}: expected from 0 to {what}, {most}, got {numbers}.")
    return numbers


def _real(new, n, device) -> Bool[Tensor, "B n"]:
    """True for the first new[b] of n tokens, False for the padding after them."""
    return torch.arange(n, device=device) < torch.tensor(new, device=device)[:, None]  # (B, n)


def _zeros(like, slots):
    """Zeros, not just memory: what lies there by chance may be NaN, and NaN times weight 0 is NaN."""
    with torch.inference_mode(False):  # so that the next call may be made under no_grad, too
        return torch.zeros(*like.shape[:2], slots, like.shape[3], dtype=like.dtype, device=like.device)


def _widen(weights, width):
    """Columns of zeros for the tokens that came later."""
    return torch.nn.functional.pad(weights, (0, width - weights.shape[-1]))
