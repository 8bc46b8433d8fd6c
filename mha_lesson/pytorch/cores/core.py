"""What a core is: one way through the middle of the layer, and what it says it can do.

    context = core(q, k, v, keep=None, causal=False, dropout=0.0)

    q        (B, H, L, D)     B batch, H query heads, L queries, D width of a head
    k, v     (B, G, S, D)     G key/value heads, each for H / G neighbouring query heads; S keys
    keep     (L, S) or (B, 1 or H, L, S)     boolean, True = may attend
    context  (B, H, L, D)     what each head found; 0 for a query that may attend to nothing

The layer makes q, k and v, hands them to its core, and puts the heads together again. So one layer,
with the same weights, runs on any of them:

    MultiHeadAttention(64, 8)                           PyTorch's fused attention, the default
    MultiHeadAttention(64, 8, core=WindowCore(128))     each query sees the last 128 keys
    layer.core = FlashCore()                            a trained layer, on a kernel from now on
    layer.core = my_attention                           any function of that form

No core can do everything. Each declares what it `can`; what it cannot do is refused before anything
is computed, with the name of a core that can. A plain function declares by its signature: without a
parameter `keep` it is never given a mask, without `causal` or `dropout` it is never asked for them.

Published layers differ in their middle alone, too, and share the names of their weights: Beltagy et
al. 2020 (windows), Katharopoulos et al. 2020 (linear), Dao et al. 2022 (a kernel), Liu et al. 2023
(a ring of devices).
"""

# Quoted word for word by tests/faults/faults.py: change both together.

import functools
import inspect
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mha_lesson.pytorch.heads import share_heads

# ------------------------------------------------------------------------------ what cores can do

# What `keep` may ask for, from nothing to anything.
MASKS = {
    "none": "None",
    "lengths": "None or a mask that hides padding on the right, (1, S) or (B, 1, 1, S)",
    "keys": "None or a mask that hides keys from all queries alike, (1, S) or (B, 1, 1, S)",
    "heads": "any mask",
}
# Asked once: torch.compile cannot look into the question (PyTorch 2.11).
AUTOCAST = {kind for kind in ("cpu", "cuda", "mps", "xpu") if torch.amp.is_autocast_available(kind)}
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Can:
    """What a core can do. The defaults say: everything.

    masks         the most that `keep` may ask for: "none", "lengths" (padding on the right), "keys"
                  (some keys are hidden from all queries) or "heads" (anything)
    causal        the values of `causal` that it knows
    cross         L ≠ S, other keys than queries
    dropout       weights are dropped in training
    gradients     it can be differentiated
    transforms    so it can inside torch.func.grad and torch.func.vmap
    weights       the weights (B, H, L, S) come beside the context, on demand
    cache         the layer can serve from a `KVCache`
    shared_heads  fewer key heads than query heads; else the layer repeats them first
    exact         softmax over all keys that may be seen: the numbers of every other exact core
    dtypes        number formats
    """

    masks: str = "heads"
    causal: tuple[bool, ...] = (False, True)
    cross: bool = True
    dropout: bool = True
    gradients: bool = True
    transforms: bool = True
    weights: bool = True
    cache: bool = True
    shared_heads: bool = True
    exact: bool = True
    dtypes: tuple[torch.dtype, ...] = FLOATS


EVERYTHING = Can()
COURSE = {
    "sdpa": EVERYTHING,
    "tiled": Can(dropout=False),
    "flash": Can(masks="lengths", dropout=False, transforms=False, dtypes=FLOATS[1:]),
    "window": Can(masks="none", causal=(True,), dropout=False, exact=False),
    "linear": Can(masks="keys", dropout=False, cache=False, exact=False),
    "ring": Can(
        masks="none", cross=False, dropout=False, gradients=False, transforms=False, weights=False, cache=False
    ),
}

# ------------------------------------------------------------------------------ a core


class Core:
    """A core of the course: it has a name, says what it `can`, and computes in `attend`."""

    name = "core"
    can = Can()

    def attend(self, q, k, v, *, keep, causal: bool, dropout: float) -> Float[Tensor, "B H L D"]:
        """The context. Only what `can` allows is asked for."""
        raise NotImplementedError

    def weights(self, q, k, *, keep, causal: bool) -> Float[Tensor, "B H L S"]:
        """The shares that `attend` spends. Computed beside it, so that asking cannot change the output."""
        raise NotImplementedError

    def positions(self, L: int, device=None) -> Int[Tensor, "L"]:
        """The places of L tokens in their text, for rotary positions."""
        return torch.arange(L, device=device)

    def check_cache(self, cache) -> None:
        """An error if serving from this cache would give other numbers than this core."""

    def __call__(
        self,
        q: Float[Tensor, "B H L D"],
        k: Float[Tensor, "B G S D"],
        v: Float[Tensor, "B G S D"],
        *,
        keep: Bool[Tensor, "..."] | None = None,
        causal: bool = False,
        dropout: float = 0.0,
    ) -> Float[Tensor, "B H L D"]:
        """The context, or an error that names what this core cannot do and one that can."""
        asked = Asked(
            keep, causal, q.shape[-2], k.shape[-2], dropout, needs_gradients(q, k, v), is_transformed(q), dtype=q.dtype
        )
        self.check(asked)
        return self.attend(q, k, v, keep=keep, causal=causal, dropout=dropout)

    def check(self, asked: "Asked") -> None:
        """An error for the first thing asked for that this core cannot do."""
        for thing, fits in asked.demands():
            if not fits(self.can):
                expected, got = asked.in_words(thing, self.can)
                raise ValueError(
                    f"{ARGUMENT.get(thing, thing)}: expected {expected} with the core {self.name!r}, got {got}. "
                    f"{who_can(fits)}"
                )

    def check_dropout(self, dropout: float) -> None:
        """An error when a layer that drops weights is made, not only when it is trained."""
        if dropout:
            self.check(Asked(causal=self.can.causal[0], dropout=dropout))

    def __repr__(self) -> str:
        given = {name: value for name, value in vars(self).items() if value is not None}
        options = ", ".join(f"{name}={getattr(value, '__name__', repr(value))}" for name, value in given.items())
        return f"{type(self).__name__}({options})"


@dataclass(frozen=True)
class Asked:
    """One call, as far as a core may refuse it. The tensors themselves play no part, but for `keep`."""

    keep: Tensor | None = None
    causal: bool = False
    L: int = 1
    S: int = 1
    dropout: float = 0.0
    gradients: bool = False
    transforms: bool = False
    weights: bool = False
    dtype: torch.dtype | None = None

    def demands(self):
        """(what is asked for, which cores fit) for everything that some core cannot do."""
        if self.keep is not None:
            yield "keep", self._mask_fits
        yield "causal", lambda can: self.causal in can.causal
        if self.L != self.S:
            yield "cross", lambda can: can.cross
        for thing in ("dropout", "gradients", "transforms", "weights"):
            if getattr(self, thing):
                yield thing, lambda can, thing=thing: getattr(can, thing)
        if self.dtype in FLOATS:
            yield "dtype", lambda can: self.dtype in can.dtypes

    def in_words(self, thing: str, can: Can) -> tuple[str, str]:
        """What this core would take, and what came."""
        formats = " or ".join(str(dtype)[6:] for dtype in can.dtypes)  # without "torch."
        expected = {
            "keep": MASKS[can.masks], "causal": str(can.causal[0]), "cross": "as many keys as queries",
            "dropout": "0", "gradients": "no gradients (call it under torch.no_grad())",
            "transforms": "a call outside of torch.func", "weights": "False", "dtype": formats,
        }  # fmt: skip
        if thing == "keep":
            return expected[thing], mask_in_words(self.keep)
        came = {
            "causal": str(self.causal), "cross": f"L = {self.L} queries and S = {self.S} keys",
            "dropout": str(self.dropout), "gradients": "tensors that ask for them",
            "transforms": "one inside torch.func.grad or vmap", "weights": "True", "dtype": str(self.dtype)[6:],
        }  # fmt: skip
        return expected[thing], came[thing]

    def _mask_fits(self, can: Can) -> bool:
        if can.masks == "heads":
            return True
        if can.masks == "none" or not same_for_all_queries(self.keep):
            return False
        return can.masks == "keys" or pads_on_the_right(self.keep)


# Whose argument it is, where the name is another.
ARGUMENT = {"cross": "key", "gradients": "query", "transforms": "query", "weights": "need_weights", "dtype": "query"}


def who_can(fits: Callable[[Can], bool]) -> str:
    """Which cores of the course can, in a sentence."""
    names = [name for name, can in COURSE.items() if fits(can)]
    return f"A core that can: {', '.join(names)}." if names else "No core of the course can."


# ------------------------------------------------------------------------------ looking at a call


def same_for_all_queries(keep: Bool[Tensor, "..."]) -> bool:
    """Does the mask say the same for each query and each head? By its shape: (1, S) or (B, 1, 1, S)."""
    return all(size == 1 for size in keep.shape[-3:-1])


def pads_on_the_right(keep: Bool[Tensor, "..."]) -> bool:
    """In each row: first all True, then all False."""
    return not bool((keep[..., 1:] & ~keep[..., :-1]).any())


def mask_in_words(keep: Bool[Tensor, "..."]) -> str:
    shape = tuple(keep.shape)
    if not same_for_all_queries(keep):
        return f"one for each query, {shape}"
    return f"one for keys, {shape}" + ("" if pads_on_the_right(keep) else ", with gaps")


def needs_gradients(*tensors: Tensor) -> bool:
    return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)


def is_transformed(x: Tensor) -> bool:
    """Is this a tensor of torch.func.grad, vmap or alike? (PyTorch tells it in a private place only.)"""
    if torch.compiler.is_compiling():
        return False
    try:
        return torch._C._functorch.is_functorch_wrapped_tensor(x)
    except AttributeError:  # another PyTorch: then its own error says what cannot be
        return False


def in_own_precision(x: Tensor):
    """A context in which autocast is off: sums that were made wide on purpose stay wide.

    Under autocast a matrix product of two float32 tensors is made in float16 or bfloat16.
    """
    return torch.autocast(x.device.type, enabled=False) if autocasting(x) else nullcontext()


def autocasting(x: Tensor) -> bool:
    """Is autocast on for the device of x? There are devices that know none (meta)."""
    return x.device.type in AUTOCAST and torch.is_autocast_enabled(x.device.type)


# ------------------------------------------------------------------------------ anybody's function


class FunctionCore(Core):
    """A function as a core: `function(q, k, v)`, with `keep`, `causal`, `dropout` if it has parameters for them.

    can: what it can do; by default read off its signature. Weights and a cache need more than a
    function, and shared heads are repeated for it.
    """

    def __init__(self, function: Callable, can: Can | None = None):
        self.function, self.takes = function, parameters(function)
        whole = function.func if isinstance(function, functools.partial) else function
        self.name = getattr(whole, "__name__", type(whole).__name__)
        self.can = can_of(function) if can is None else can

    def attend(self, q, k, v, *, keep, causal, dropout):
        if not self.can.shared_heads:
            k, v = share_heads(k, q.shape[1]), share_heads(v, q.shape[1])  # (B, H, S, D)
        options = {"keep": keep, "causal": causal, "dropout": dropout}
        context = self.function(q, k, v, **{name: options[name] for name in self.takes})
        shape = (*q.shape[:3], v.shape[3])
        if not isinstance(context, Tensor) or context.shape != shape:
            got = tuple(context.shape) if isinstance(context, Tensor) else type(context).__name__
            raise ValueError(f"core: expected {self.name} to give a context (B, H, L, D) = {tuple(shape)}, got {got}.")
        return context

    def __repr__(self) -> str:
        return self.name


def can_of(function: Callable) -> Can:
    """What a function can do, as far as its parameters tell."""
    has = parameters(function)
    return Can(
        masks="heads" if "keep" in has else "none",
        causal=(False, True) if "causal" in has else (False,),
        dropout="dropout" in has,
        weights=False,
        cache=False,
        shared_heads=False,
        exact=False,
    )


def parameters(function: Callable) -> set[str]:
    """Those of keep, causal and dropout that the function takes by name."""
    names = {"keep", "causal", "dropout"}
    try:
        taken = inspect.signature(getattr(function, "forward", function)).parameters.values()  # forward: of a module
    except (TypeError, ValueError):  # a function written in C shows none
        return set()
    if any(p.kind is p.VAR_KEYWORD for p in taken):
        return names
    return names & {p.name for p in taken if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}


def as_core(core) -> Core:
    """A core from what `MultiHeadAttention(core=...)` is given: a core, one of the course's functions, or another.

    `window_attention` and its like know their core, in a `functools.partial`, too:
    as_core(partial(window_attention, width=64)) is WindowCore(width=64).
    """
    if isinstance(core, Core):
        return core
    function, options = core, {}
    if isinstance(core, functools.partial) and not core.args:
        function, options = core.func, core.keywords
    if hasattr(function, "core"):
        return function.core(**options)
    if callable(core) and not isinstance(core, type):
        return FunctionCore(core)
    if isinstance(core, type) and issubclass(core, Core):
        raise TypeError(f"core: expected a core, got the class {core.__name__}. Make one: {core.__name__}().")
    raise TypeError(
        f"core: expected a core such as TiledCore(), or a function core(q, k, v, *, keep, causal, dropout), "
        f"got {core!r}."
    )


def core_of(function: Callable) -> Callable[[type[Core]], type[Core]]:
    """Decorator of a core's class: `as_core(function)` makes one of these."""

    def remember(cls: type[Core]) -> type[Core]:
        function.core = cls
        return cls

    return remember
