"""Attention as a kernel: FlashAttention in Triton, forwards and backwards, to be read.

    S = Q K^T · scale,  P = softmax(S),  O = P V           tile by tile, no N×N array
    LSE = log sum exp(S)                                   one number a row, kept for the way back

    dV = P^T dO,  dP = dO V^T,  dS = P (dP - delta),  delta = sum(dO · O)
    dQ = dS K · scale,  dK = dS^T Q · scale                P computed again from S and LSE

    Q, O, dO   (B, H, L, D)    H = G·R query heads; R neighbours share a key head
    K, V       (B, G, S, D)    D up to 128; other than 16, 32, 64, 128 it is padded by masks
    lengths    (B,)            real keys of each sequence; those behind them are padding
    LSE        (B, H, L)       float32, -inf for a row that may see nothing

One program has a block of queries of one head (backwards also: a block of keys), and goes through
the tiles of the other side. Tiles that lie wholly in what may be seen come first and need no mask;
those on the edge come after. Powers of two replace powers of e: the hardware has them.

The same source runs in four ways:

    backend        where                                       how
    "triton"       a CUDA device                               compiled by Triton
    "interpreter"  Linux, TRITON_INTERPRET=1 before import     Triton's own, slow
    "stand-in"     everywhere                                  mha_lesson.pytorch.triton_numpy, NumPy
    (ahead of time: `compile_ahead` makes code for a GPU that is not there; for tests)

Sources: Dao et al. 2022, "FlashAttention"; Dao 2023, "FlashAttention-2", algorithms 1 and 2;
Tillet et al. 2019, "Triton".
"""

# Quoted word for word by tests/faults/faults.py: change both together.

import itertools
from contextlib import nullcontext
from functools import cache
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from mha_lesson.pytorch import triton_numpy
from mha_lesson.pytorch.cores.core import COURSE, core_of
from mha_lesson.pytorch.cores.linear import keys_of
from mha_lesson.pytorch.cores.sdpa import ExactCore

try:
    import triton
    import triton.language as tl
except ImportError:  # Windows, macOS, and wherever it is not installed
    from mha_lesson.pytorch import triton_numpy as triton
    from mha_lesson.pytorch.triton_numpy import language as tl

LOG2_E = tl.constexpr(1.4426950408889634)  # exp(x) = 2^(x · LOG2_E)
LN_2 = tl.constexpr(0.6931471805599453)

# ------------------------------------------------------------------------------ tiles


@triton.jit
def load_rows(
    X, rows, width, step, stop, D: tl.constexpr, BLOCK_D: tl.constexpr, WHOLE: tl.constexpr, UPCAST: tl.constexpr
):
    """Rows of a matrix (tokens, D) as a tile: 0 from row `stop` on, and beyond the width D.

    WHOLE: all these rows are there, so that nothing has to be masked.
    """
    places = X + rows[:, None] * step + width[None, :]  # (rows, BLOCK_D)
    if WHOLE and D == BLOCK_D:
        tile = tl.load(places)
    else:
        tile = tl.load(places, mask=(rows[:, None] < stop) & (width[None, :] < D), other=0.0)
    if UPCAST:
        tile = tile.to(tl.float32)
    return tile


@triton.jit
def store_rows(X, rows, width, stop, tile, D: tl.constexpr):
    """The tile into rows of a matrix (tokens, D) without gaps; what lies beyond it stays untouched."""
    places = X + rows[:, None] * D + width[None, :]
    tl.store(places, tile.to(X.dtype.element_ty), mask=(rows[:, None] < stop) & (width[None, :] < D))


@triton.jit
def last_key(rows, stop, L, S, CAUSAL: tl.constexpr):
    """The last key that each query may see, (rows,); below 0: it may see none."""
    last = rows * 0 + (stop - 1)
    if CAUSAL:
        last = tl.minimum(last, rows + (S - L))  # the last query sees all S keys
    return last


# ------------------------------------------------------------------------------ forwards


@triton.jit
def forward_tile(
    q, m, l, acc, K, V, k_row, v_row, start, stop, last, scale,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_K: tl.constexpr, MASKED: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """(m, l, acc) with one more tile of keys. MASKED: some of them are hidden from some queries."""
    keys, width = start + tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_D)
    k = load_rows(K, keys, width, k_row, stop, D, BLOCK_D, not MASKED, UPCAST)  # (BLOCK_K, BLOCK_D)
    v = load_rows(V, keys, width, v_row, stop, D, BLOCK_D, not MASKED, UPCAST)
    s = tl.dot(q, tl.trans(k), input_precision="ieee")  # (BLOCK_Q, BLOCK_K)
    if MASKED:
        s = tl.where(keys[None, :] <= last[:, None], s, float("-inf"))
    m_new = tl.maximum(m, tl.max(s, 1) * scale)  # (BLOCK_Q,)
    highest = m_new
    if MASKED:
        highest = tl.where(m_new == float("-inf"), 0.0, m_new)  # a query that has seen nothing yet
    p = tl.exp2(s * scale - highest[:, None])  # (BLOCK_Q, BLOCK_K)
    shrink = tl.exp2(m - highest)
    l = l * shrink + tl.sum(p, 1)
    acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None], input_precision="ieee")  # (BLOCK_Q, BLOCK_D)
    return m_new, l, acc


@triton.jit
def forward_kernel(
    Q, K, V, O, LSE, LENGTHS, scale,
    q_b, q_h, q_row, k_b, k_h, k_row, v_b, v_h, v_row, L, S, H, R,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
    CAUSAL: tl.constexpr, PADDED: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """O and LSE of BLOCK_Q queries of one head of one sequence."""
    blocks = tl.cdiv(L, BLOCK_Q)
    head = tl.program_id(0) // blocks  # of B · H
    block = blocks - 1 - tl.program_id(0) % blocks  # causal: the last queries have most to do, so they come first
    b, h, head = (head // H).to(tl.int64), (head % H).to(tl.int64), head.to(tl.int64)
    rows, width = block * BLOCK_Q + tl.arange(0, BLOCK_Q), tl.arange(0, BLOCK_D)
    q = load_rows(Q + b * q_b + h * q_h, rows, width, q_row, L, D, BLOCK_D, False, UPCAST)  # (BLOCK_Q, BLOCK_D)
    K += b * k_b + h // R * k_h  # neighbours share a key head
    V += b * v_b + h // R * v_h
    stop = S
    if PADDED:
        stop = tl.load(LENGTHS + b)
    last = last_key(rows, stop, L, S, CAUSAL)
    full, end = stop // BLOCK_K * BLOCK_K, stop  # tiles before `full` need no mask; from `end` on all is hidden
    if CAUSAL:
        first = block * BLOCK_Q + S - L  # what the first query sees last
        full = tl.minimum(full, tl.maximum(first + 1, 0) // BLOCK_K * BLOCK_K)
        end = tl.minimum(stop, tl.maximum(first + BLOCK_Q, 0))
    m = tl.full([BLOCK_Q], float("-inf"), tl.float32)
    l = tl.zeros([BLOCK_Q], tl.float32)
    acc = tl.zeros([BLOCK_Q, BLOCK_D], tl.float32)
    for start in range(0, full, BLOCK_K):
        m, l, acc = forward_tile(
            q, m, l, acc, K, V, k_row, v_row, start, stop, last, scale * LOG2_E, D, BLOCK_D, BLOCK_K, False, UPCAST
        )
    for start in range(full, end, BLOCK_K):
        m, l, acc = forward_tile(
            q, m, l, acc, K, V, k_row, v_row, start, stop, last, scale * LOG2_E, D, BLOCK_D, BLOCK_K, True, UPCAST
        )
    seen = tl.where(l > 0, l, 1.0)  # a query that may see nothing: 0 / 1
    store_rows(O + head * L * D, rows, width, L, acc / seen[:, None], D)
    lse = tl.where(l > 0, (m + tl.log2(seen)) * LN_2, float("-inf"))
    tl.store(LSE + head * L + rows, lse, mask=rows < L)


# ------------------------------------------------------------------------------ backwards


@triton.jit
def query_gradient_kernel(
    Q, K, V, O, DO, LSE, DELTA, DQ, LENGTHS, scale,
    q_b, q_h, q_row, k_b, k_h, k_row, v_b, v_h, v_row, do_b, do_h, do_row, L, S, H, R,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
    CAUSAL: tl.constexpr, PADDED: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """dQ and delta of BLOCK_Q queries: they stay, and the tiles of keys go by."""
    blocks = tl.cdiv(L, BLOCK_Q)
    head = tl.program_id(0) // blocks  # of B · H
    block = blocks - 1 - tl.program_id(0) % blocks
    b, h, head = (head // H).to(tl.int64), (head % H).to(tl.int64), head.to(tl.int64)
    rows, width = block * BLOCK_Q + tl.arange(0, BLOCK_Q), tl.arange(0, BLOCK_D)
    q = load_rows(Q + b * q_b + h * q_h, rows, width, q_row, L, D, BLOCK_D, False, UPCAST)  # (BLOCK_Q, BLOCK_D)
    o = load_rows(O + head * L * D, rows, width, D, L, D, BLOCK_D, False, UPCAST)
    do = load_rows(DO + b * do_b + h * do_h, rows, width, do_row, L, D, BLOCK_D, False, UPCAST)
    delta = tl.sum(do.to(tl.float32) * o.to(tl.float32), 1)  # (BLOCK_Q,)
    tl.store(DELTA + head * L + rows, delta, mask=rows < L)  # for the other kernel
    lse = tl.load(LSE + head * L + rows, mask=rows < L, other=0.0) * LOG2_E
    K += b * k_b + h // R * k_h
    V += b * v_b + h // R * v_h
    stop = S
    if PADDED:
        stop = tl.load(LENGTHS + b)
    last, end = last_key(rows, stop, L, S, CAUSAL), stop
    if CAUSAL:
        end = tl.minimum(stop, tl.maximum(block * BLOCK_Q + BLOCK_Q + S - L, 0))
    dq = tl.zeros([BLOCK_Q, BLOCK_D], tl.float32)
    for start in range(0, end, BLOCK_K):
        keys = start + tl.arange(0, BLOCK_K)
        k = load_rows(K, keys, width, k_row, stop, D, BLOCK_D, False, UPCAST)  # (BLOCK_K, BLOCK_D)
        v = load_rows(V, keys, width, v_row, stop, D, BLOCK_D, False, UPCAST)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * (scale * LOG2_E)  # (BLOCK_Q, BLOCK_K)
        p = tl.where(keys[None, :] <= last[:, None], tl.exp2(s - lse[:, None]), 0.0)  # P again, from LSE
        dp = tl.dot(do, tl.trans(v), input_precision="ieee")
        ds = p * (dp - delta[:, None])
        dq = tl.dot(ds.to(k.dtype), k, dq, input_precision="ieee")  # (BLOCK_Q, BLOCK_D)
    store_rows(DQ + head * L * D, rows, width, L, dq * scale, D)


@triton.jit
def key_gradient_kernel(
    Q, K, V, DO, LSE, DELTA, DK, DV, LENGTHS, scale,
    q_b, q_h, q_row, k_b, k_h, k_row, v_b, v_h, v_row, do_b, do_h, do_row, L, S, H, R,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
    CAUSAL: tl.constexpr, PADDED: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """dK and dV of BLOCK_K keys of one key head: they stay, and the queries of all R heads go by.

    No two programs write to the same place, so nothing has to be added up afterwards.
    """
    blocks, G = tl.cdiv(S, BLOCK_K), H // R
    head = tl.program_id(0) // blocks  # of B · G
    block = tl.program_id(0) % blocks  # causal: the first keys have most to do, and they come first
    b, g, head = (head // G).to(tl.int64), (head % G).to(tl.int64), head.to(tl.int64)
    keys, width = block * BLOCK_K + tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_D)
    stop = S
    if PADDED:
        stop = tl.load(LENGTHS + b)
    k = load_rows(K + b * k_b + g * k_h, keys, width, k_row, stop, D, BLOCK_D, False, UPCAST)  # (BLOCK_K, BLOCK_D)
    v = load_rows(V + b * v_b + g * v_h, keys, width, v_row, stop, D, BLOCK_D, False, UPCAST)
    first = 0  # queries before it see none of these keys
    if CAUSAL:
        first = tl.maximum(block * BLOCK_K - (S - L), 0) // BLOCK_Q * BLOCK_Q
    if PADDED:
        first = tl.where(block * BLOCK_K < stop, first, L)
    dk = tl.zeros([BLOCK_K, BLOCK_D], tl.float32)
    dv = tl.zeros([BLOCK_K, BLOCK_D], tl.float32)
    for r in range(0, R):
        h = g * R + r
        place = (b * H + h) * L
        for start in range(first, L, BLOCK_Q):
            rows = start + tl.arange(0, BLOCK_Q)
            q = load_rows(Q + b * q_b + h * q_h, rows, width, q_row, L, D, BLOCK_D, False, UPCAST)
            do = load_rows(DO + b * do_b + h * do_h, rows, width, do_row, L, D, BLOCK_D, False, UPCAST)
            lse = tl.load(LSE + place + rows, mask=rows < L, other=0.0) * LOG2_E
            delta = tl.load(DELTA + place + rows, mask=rows < L, other=0.0)
            last = last_key(rows, stop, L, S, CAUSAL)
            s = tl.dot(q, tl.trans(k), input_precision="ieee") * (scale * LOG2_E)  # (BLOCK_Q, BLOCK_K)
            p = tl.where(keys[None, :] <= last[:, None], tl.exp2(s - lse[:, None]), 0.0)
            dv = tl.dot(tl.trans(p.to(do.dtype)), do, dv, input_precision="ieee")  # (BLOCK_K, BLOCK_D)
            dp = tl.dot(do, tl.trans(v), input_precision="ieee")
            ds = p * (dp - delta[:, None])
            dk = tl.dot(tl.trans(ds.to(q.dtype)), q, dk, input_precision="ieee")  # (BLOCK_K, BLOCK_D)
    store_rows(DK + head * S * D, keys, width, S, dk * scale, D)
    store_rows(DV + head * S * D, keys, width, S, dv, D)


# ------------------------------------------------------------------------------ starting them


class Tiles(NamedTuple):
    """Sizes of the tiles, and what the compiler is told: warps that share a tile, tiles fetched ahead."""

    block_q: int
    block_k: int
    num_warps: int
    num_stages: int

    def advice(self) -> dict[str, int]:
        """What the compiler is told beside the sizes: it may fuse a · b + c, as it always did by default."""
        return {"num_warps": self.num_warps, "num_stages": self.num_stages, "enable_fp_fusion": True}


# (half precision?, width up to 64?, large fast memory?) -> tiles. The last is H100, H200, B200 (228 KB a core);
# the others must do with the 99 KB of an RTX card. No entry spills numbers out of the registers (its test says so).
FORWARD_TILES = {
    (True, True, True): Tiles(128, 64, 8, 3),
    (True, True, False): Tiles(128, 64, 8, 2),
    (True, False, True): Tiles(128, 64, 8, 3),
    (True, False, False): Tiles(128, 64, 8, 2),
    (False, True, True): Tiles(32, 32, 4, 1),  # float32: twice the room, and no matrix unit for "ieee"
    (False, True, False): Tiles(32, 32, 4, 1),
    (False, False, True): Tiles(32, 32, 8, 1),
    (False, False, False): Tiles(32, 32, 8, 1),
}
BACKWARD_TILES = {  # two gradients are summed up at once, so the tiles are smaller
    (True, True, True): Tiles(64, 64, 4, 1),
    (True, True, False): Tiles(64, 32, 4, 2),
    (True, False, True): Tiles(64, 64, 8, 1),
    (True, False, False): Tiles(64, 64, 8, 1),
    (False, True, True): Tiles(32, 32, 8, 1),
    (False, True, False): Tiles(32, 32, 8, 1),
    (False, False, True): Tiles(16, 16, 8, 1),
    (False, False, False): Tiles(16, 16, 8, 1),
}


def forward_tiles(dtype: torch.dtype, d_head: int, arch: int = 90) -> Tiles:
    """Larger tiles reuse what they load; they must fit the registers and the fast memory of a core.

    arch: ten times the compute capability: 80 for A100, 86 and 89 for RTX cards, 90 for H100 and H200.
    """
    return FORWARD_TILES[_kind_of_tiles(dtype, d_head, arch)]


def backward_tiles(dtype: torch.dtype, d_head: int, arch: int = 90) -> Tiles:
    return BACKWARD_TILES[_kind_of_tiles(dtype, d_head, arch)]


def _kind_of_tiles(dtype, d_head, arch) -> tuple[bool, bool, bool]:
    return dtype != torch.float32, d_head <= 64, arch // 10 in (9, 10)


class Plan(NamedTuple):
    """How a call is run: where, with which tiles, and the numbers that every kernel is given."""

    backend: str
    forward: Tiles
    backward: Tiles
    lengths: Tensor | None
    causal: bool


def available() -> dict[str, str]:
    """Each backend that there is, and in words whether this machine can run it: "yes", or what is missing."""
    real = triton is not triton_numpy
    missing = "Triton is not installed (pip install triton, on Linux)"
    interpreted = "set TRITON_INTERPRET=1 before Triton is imported"
    return {
        "triton": (_no_device() or "yes") if real else missing,
        "interpreter": missing if not real else "yes" if _interpreted() else interpreted,
        "stand-in": "yes",
    }


def _no_device() -> str | None:
    """Why Triton cannot run compiled kernels here; None if it can."""
    if not torch.cuda.is_available():
        return "there is no CUDA device"
    if _interpreted():
        return "TRITON_INTERPRET=1 was set when Triton was imported; start Python without it"
    if torch.version.cuda and _arch("cuda") < 80:
        have = _arch("cuda") / 10
        return f"the CUDA device has compute capability {have}; this kernel needs 8.0 (A100, RTX 30) or more"
    return None


def _arch(device) -> int:
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


def _interpreted() -> bool:
    """Did Triton make interpreted kernels when this file was imported?"""
    return type(forward_kernel).__name__ == "InterpretedFunction"


def flash_attention(
    q: Float[Tensor, "B H L D"],
    k: Float[Tensor, "B G S D"],
    v: Float[Tensor, "B G S D"],
    *,
    causal: bool = False,
    lengths: Int[Tensor, "B"] | None = None,
    backend: str | None = None,
    block_q: int | None = None,
    block_k: int | None = None,
) -> Float[Tensor, "B H L D"]:
    """softmax(Q K^T / sqrt(D), causal and lengths) V, differentiable, by the kernels of this file.

    causal: the last query sees all S keys. lengths (B,): keys from there on are padding.
    backend: None chooses: "triton" for CUDA tensors, else "interpreter" if it is on, else "stand-in".
    block_q, block_k: sizes of the tiles, powers of two from 16 on; None for what suits the machine.

    A query that may see nothing gets output 0, and gradients 0. float16 and bfloat16 are summed up
    in float32. For float64 use `mha_lesson.pytorch.cores.tiled.tiled_attention`.
    """
    plan = _plan(q, k, v, causal, lengths, backend, block_q, block_k)
    return _Flash.apply(*(_rows_in_line(x) for x in (q, k, v)), plan)


def flash_forward(q, k, v, **options) -> tuple[Float[Tensor, "B H L D"], Float[Tensor, "B H L"]]:
    """(output, LSE), without gradients; takes what `flash_attention` takes."""
    names = ("causal", "lengths", "backend", "block_q", "block_k")
    plan = _plan(q, k, v, *(options.pop(name, None) for name in names))
    if options:
        raise TypeError(f"flash_forward: expected {', '.join(names)}, got {', '.join(options)}.")
    return _forward(*(_rows_in_line(x.detach()) for x in (q, k, v)), plan)


class _Flash(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, plan):
        out, lse = _forward(q, k, v, plan)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.plan = plan
        return out

    @staticmethod
    @once_differentiable  # a second derivative is an error, not a wrong number
    def backward(ctx, d_out):
        return *_backward(*ctx.saved_tensors, _rows_in_line(d_out), ctx.plan), None


def _forward(q, k, v, plan: Plan):
    B, H, L, _ = q.shape
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    lse = torch.empty(B, H, L, dtype=torch.float32, device=q.device)
    if 0 in (out.numel(), k.numel()):  # no query, or no key to see
        return out.zero_(), lse.fill_(-torch.inf)
    programs = triton.cdiv(L, plan.forward.block_q) * B * H
    _start(forward_kernel, programs, [q, k, v, out, lse], [q, k, v], plan, plan.forward)
    return out, lse


def _backward(q, k, v, out, lse, d_out, plan: Plan):
    (B, H, L, _), (G, S) = q.shape, k.shape[1:3]
    d_q, d_k, d_v = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
    if 0 in (out.numel(), k.numel()):
        return d_q.zero_(), d_k.zero_(), d_v.zero_()
    delta = torch.empty_like(lse)
    steps = [q, k, v, d_out]
    programs = triton.cdiv(L, plan.backward.block_q) * B * H
    _start(query_gradient_kernel, programs, [q, k, v, out, d_out, lse, delta, d_q], steps, plan, plan.backward)
    programs = triton.cdiv(S, plan.backward.block_k) * B * G
    _start(key_gradient_kernel, programs, [q, k, v, d_out, lse, delta, d_k, d_v], steps, plan, plan.backward)
    return d_q, d_k, d_v


def _start(kernel, programs: int, tensors, stepped, plan: Plan, tiles: Tiles) -> None:
    """Start all programs of a kernel, on the backend of the plan. stepped: tensors whose steps it is told."""
    q, k = tensors[:2]
    (H, L, D), (G, S) = q.shape[1:], k.shape[1:3]
    lengths = q if plan.lengths is None else plan.lengths  # not read if PADDED is False
    steps = [n for x in stepped for n in x.stride()[:3]]
    arguments = [*tensors, lengths, D**-0.5, *steps, L, S, H, H // G]
    upcast = plan.backend == "interpreter" and q.dtype == torch.bfloat16  # its dot is wrong there (triton #11584)
    numbers = _fixed(D, tiles, plan.causal, plan.lengths is not None, upcast) | tiles.advice()
    if plan.backend == "stand-in":
        return triton_numpy.run(kernel, (programs,), *arguments, **numbers)
    with torch.cuda.device(q.device) if q.is_cuda else nullcontext():
        kernel[(programs,)](*arguments, **numbers)


def _fixed(D: int, tiles: Tiles, causal: bool, padded: bool, upcast: bool = False) -> dict:
    """The numbers that a kernel is compiled for."""
    block_d = max(16, triton.next_power_of_2(D))  # the matrix units take no narrower ones
    return {
        "D": D, "BLOCK_D": block_d, "BLOCK_Q": tiles.block_q, "BLOCK_K": tiles.block_k,
        "CAUSAL": causal, "PADDED": padded, "UPCAST": upcast,
    }  # fmt: skip


def _rows_in_line(x: Tensor) -> Tensor:
    """The kernels step through the width one number at a time, and count places in a head with 32 bits."""
    fits = x.stride(-1) == 1 and x.shape[-2] * x.stride(-2) < 2**31
    return x if fits else x.contiguous()


# ------------------------------------------------------------------------------ what is refused


def _plan(q, k, v, causal, lengths, backend, block_q, block_k) -> Plan:
    _check(q, k, v)
    backend = _choose(backend, q)
    arch = _arch(q.device) if q.is_cuda else 90
    tiles = []
    for chosen in (forward_tiles(q.dtype, q.shape[-1], arch), backward_tiles(q.dtype, q.shape[-1], arch)):
        mine = {name: n for name, n in (("block_q", block_q), ("block_k", block_k)) if n is not None}
        for name, n in mine.items():
            if n < 16 or n & (n - 1):
                raise ValueError(f"{name}: expected a power of two from 16 on, got {n}.")
        tiles.append(chosen._replace(**mine))
    return Plan(backend, *tiles, _check_lengths(lengths, q, k), bool(causal))


def _choose(backend: str | None, q: Tensor) -> str:
    able = available()
    if backend is None:
        backend = "triton" if q.is_cuda else "interpreter" if able["interpreter"] == "yes" else "stand-in"
    if backend not in able:
        raise ValueError(f"backend: expected {', '.join(able)} or None, got {backend!r}.")
    if able[backend] != "yes":
        raise ValueError(f"backend: {backend!r} cannot run here: {able[backend]}. Pass None to choose what can.")
    if q.is_cuda != (backend == "triton"):
        place = "a CUDA device: q.cuda()" if backend == "triton" else "the CPU: q.cpu()"
        raise ValueError(f"backend: {backend!r} needs tensors on {place}. They are on {q.device}.")
    return backend


def _check(q, k, v) -> None:
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, Tensor) or x.dim() != 4:
            got = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise ValueError(f"{name}: expected a tensor (batch, heads, tokens, width), got {got}.")
        if x.dtype not in (torch.float16, torch.bfloat16, torch.float32):
            raise ValueError(
                f"{name}: expected float16, bfloat16 or float32, got {x.dtype}. For float64 use "
                f"mha_lesson.pytorch.cores.tiled.tiled_attention."
            )
        if (x.dtype, x.device) != (q.dtype, q.device):
            raise ValueError(f"{name}: expected {q.dtype} on {q.device} as q has, got {x.dtype} on {x.device}.")
    (B, H, _, D), (G, S) = q.shape, k.shape[1:3]
    if k.shape != (B, G, S, D) or v.shape != (B, G, S, D):
        raise ValueError(
            f"k, v: expected both ({B}, kv heads, tokens, {D}) beside q {tuple(q.shape)}, got "
            f"{tuple(k.shape)} and {tuple(v.shape)}."
        )
    if G == 0 or H % G:
        raise ValueError(f"k: expected a number of heads that divides the {H} of q, got {G}.")
    if not 1 <= D <= 128:
        raise ValueError(f"q: expected a head width from 1 to 128, got {D}: a tile of more does not fit the core.")


def _check_lengths(lengths, q, k) -> Tensor | None:
    if lengths is None:
        return None
    lengths = torch.as_tensor(lengths)
    if lengths.shape != q.shape[:1] or lengths.dtype.is_floating_point or lengths.dtype == torch.bool:
        raise ValueError(
            f"lengths: expected one whole number for each of the {q.shape[0]} sequences, got {lengths.dtype} "
            f"of shape {tuple(lengths.shape)}."
        )
    S = k.shape[2]
    if not lengths.is_cuda and ((lengths < 0) | (lengths > S)).any():
        raise ValueError(f"lengths: expected 0 to {S}, the number of keys, got {lengths.tolist()}.")
    # On a GPU to look at them would make Python wait. No kernel reads beyond S there either.
    return lengths.clamp(0, S).to(q.device, torch.int32)


# ------------------------------------------------------------------------------ which tiles are fastest here


def tune(q, k, v, *, causal: bool = False, tiles=None) -> list[tuple[float, Tiles]]:
    """(milliseconds forwards, tiles), the fastest first: a race on your GPU, for these inputs.

    tiles: what to try; None for the usual ones. What the device has no room for is left out.
    """
    if tiles is None:
        sizes = itertools.product((64, 128), (32, 64, 128), (4, 8), (2, 3))
        tiles = itertools.starmap(Tiles, sizes)
    plan = _plan(q, k, v, causal, None, "triton", None, None)
    times = []
    for candidate in tiles:
        try:
            milliseconds = triton.testing.do_bench(lambda c=candidate: _forward(q, k, v, plan._replace(forward=c)))
        except triton.runtime.errors.OutOfResources:
            continue
        times.append((milliseconds, candidate))
    return sorted(times)


# ------------------------------------------------------------------------------ ahead of time


KERNELS = {k.fn.__name__: k for k in (forward_kernel, query_gradient_kernel, key_gradient_kernel)}


@cache
def compile_ahead(
    kernel_name: str,
    arch: int,
    dtype: torch.dtype,
    d_head: int,
    causal: bool = True,
    padded: bool = False,
    ones: tuple[str, ...] = (),
    tiles: Tiles | None = None,
):
    """What Triton makes of a kernel for a GPU that need not be there: its `.asm["ptx"]`, `.asm["cubin"]`.

    kernel_name: one of KERNELS. arch: 80 for A100, 90 for H100 and H200, ...
    ones: which of L, S, H, R are 1; Triton makes a kernel of its own for that. tiles: None for the table's.
    """
    if triton is triton_numpy or _interpreted():
        raise RuntimeError(f"compile_ahead needs Triton's compiler: {available()['triton']}.")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = KERNELS[kernel_name]
    table = forward_tiles if kernel is forward_kernel else backward_tiles
    tiles = tiles or table(dtype, d_head, arch)
    fixed = _fixed(d_head, tiles, causal, padded) | dict.fromkeys(ones, 1)
    signature = {name: "constexpr" if name in fixed else _kind(name, dtype) for name in kernel.arg_names}
    places = {name: (i,) for i, name in enumerate(kernel.arg_names)}
    constants = {places[name]: value for name, value in fixed.items()}
    aligned = {  # addresses and steps are multiples of 16, as PyTorch makes them
        places[name]: [["tt.divisibility", 16]]
        for name, kind in signature.items()
        if kind.startswith("*") or name.endswith(("_b", "_h", "_row"))
    }
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=aligned)
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=tiles.advice())


def _kind(name: str, dtype: torch.dtype) -> str:
    """How Triton writes down what an argument is: "*bf16" is the address of bfloat16 numbers."""
    if name in ("LSE", "DELTA"):
        return "*fp32"
    if name in ("Q", "K", "V", "O", "DO", "DQ", "DK", "DV"):
        return {torch.float32: "*fp32", torch.float16: "*fp16", torch.bfloat16: "*bf16"}[dtype]
    return {"LENGTHS": "*i32", "scale": "fp32"}.get(name, "i32")


# ------------------------------------------------------------------------------ in the layer


@core_of(flash_attention)
class FlashCore(ExactCore):
    """`flash_attention`: the kernels of this file, compiled on a GPU, in NumPy elsewhere. backend: None chooses.

    A mask may hide padding on the right: it becomes the lengths of the sequences.
    """

    name, can = "flash", COURSE["flash"]

    def __init__(self, backend: str | None = None, block_q: int | None = None, block_k: int | None = None):
        self.backend, self.block_q, self.block_k = backend, block_q, block_k

    @torch.compiler.disable  # it is compiled already
    def attend(self, q, k, v, *, keep, causal, dropout):
        keys = keys_of(keep, k)  # (B, S)
        lengths = None if keys is None else keys.sum(1)
        return flash_attention(q, k, v, causal=causal, lengths=lengths, **vars(self))
