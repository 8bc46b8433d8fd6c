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
    "stand-in"     everywhere                                  mha_lesson.pytorch.stand_in, NumPy
    (ahead of time: `compile_ahead` makes code for a GPU that is not there; for tests)

Sources: Dao et al. 2022, "FlashAttention"; Dao 2023, "FlashAttention-2", algorithms 1 and 2;
Tillet et al. 2019, "Triton".
"""

from functools import cache
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mha_lesson.pytorch import stand_in

try:
    import triton
    import triton.language as tl
except ImportError:  # Windows, macOS, and wherever it is not installed
    from mha_lesson.pytorch import stand_in as triton
    from mha_lesson.pytorch.stand_in import language as tl

LOG2_E = tl.constexpr(1.4426950408889634)  # exp(x) = 2^(x · LOG2_E)
LN_2 = tl.constexpr(0.6931471805599453)

# ------------------------------------------------------------------------------ forwards


@triton.jit
def forward_tile(
    q, m, l, acc, K, V, k_row, v_row, start, stop, last_seen, scale,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_K: tl.constexpr, MASKED: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """(m, l, acc) with one more tile of keys. MASKED: some of them are hidden from some queries."""
    keys, width = start + tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_D)
    there = (keys[:, None] < stop) & (width[None, :] < D)
    k = tl.load(K + keys[:, None] * k_row + width[None, :], mask=there, other=0.0)  # (BLOCK_K, BLOCK_D)
    v = tl.load(V + keys[:, None] * v_row + width[None, :], mask=there, other=0.0)
    if UPCAST:
        k, v = k.to(tl.float32), v.to(tl.float32)
    s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale  # (BLOCK_Q, BLOCK_K)
    if MASKED:
        s = tl.where((keys[None, :] <= last_seen[:, None]) & (keys[None, :] < stop), s, float("-inf"))
    m_new = tl.maximum(m, tl.max(s, 1))  # (BLOCK_Q,)
    peak = m_new
    if MASKED:
        peak = tl.where(m_new == float("-inf"), 0.0, m_new)  # a query that has seen nothing yet
    p = tl.exp2(s - peak[:, None])  # (BLOCK_Q, BLOCK_K)
    shrink = tl.exp2(m - peak)
    l = l * shrink + tl.sum(p, 1)
    acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None], input_precision="ieee")  # (BLOCK_Q, BLOCK_D)
    return m_new, l, acc


@triton.jit
def forward_kernel(
    Q, K, V, O, LSE, LENGTHS, scale,
    q_b, q_h, q_row, k_b, k_h, k_row, v_b, v_h, v_row, o_b, o_h, o_row, L, S, H, R,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
    CAUSAL: tl.constexpr, PADDED: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """O and LSE of BLOCK_Q queries of one head of one sequence."""
    block, head = tl.program_id(0), tl.program_id(1)
    b, h = (head // H).to(tl.int64), (head % H).to(tl.int64)
    rows, width = block * BLOCK_Q + tl.arange(0, BLOCK_Q), tl.arange(0, BLOCK_D)
    mine = (rows[:, None] < L) & (width[None, :] < D)
    q = tl.load(Q + b * q_b + h * q_h + rows[:, None] * q_row + width[None, :], mask=mine, other=0.0)
    if UPCAST:
        q = q.to(tl.float32)
    K += b * k_b + h // R * k_h  # neighbours share a key head
    V += b * v_b + h // R * v_h
    stop = S
    if PADDED:
        stop = tl.load(LENGTHS + b)
    last_seen = tl.zeros([BLOCK_Q], tl.int32) + S  # the last key that each query may see
    full, end = stop // BLOCK_K * BLOCK_K, stop  # tiles before `full` need no mask; from `end` on all is hidden
    if CAUSAL:
        first = block * BLOCK_Q + S - L  # what the first query sees last
        last_seen = rows + (S - L)
        full = tl.minimum(full, tl.maximum(first + 1, 0) // BLOCK_K * BLOCK_K)
        end = tl.minimum(stop, tl.maximum(first + BLOCK_Q, 0))
    m = tl.full([BLOCK_Q], float("-inf"), tl.float32)
    l = tl.zeros([BLOCK_Q], tl.float32)
    acc = tl.zeros([BLOCK_Q, BLOCK_D], tl.float32)
    for start in range(0, full, BLOCK_K):
        m, l, acc = forward_tile(
            q, m, l, acc, K, V, k_row, v_row, start, stop, last_seen, scale * LOG2_E,
            D, BLOCK_D, BLOCK_K, False, UPCAST,
        )  # fmt: skip
    for start in range(full, end, BLOCK_K):
        m, l, acc = forward_tile(
            q, m, l, acc, K, V, k_row, v_row, start, stop, last_seen, scale * LOG2_E,
            D, BLOCK_D, BLOCK_K, True, UPCAST,
        )  # fmt: skip
    seen = tl.where(l > 0, l, 1.0)  # a query that may see nothing: 0 / 1
    out = acc / seen[:, None]
    tl.store(O + b * o_b + h * o_h + rows[:, None] * o_row + width[None, :], out.to(O.dtype.element_ty), mask=mine)
    lse = tl.where(l > 0, (m + tl.log2(seen)) * LN_2, float("-inf"))
    tl.store(LSE + head.to(tl.int64) * L + rows, lse, mask=rows < L)


# ------------------------------------------------------------------------------ backwards


@triton.jit
def shares(s, lse, keys, stop, last_seen):
    """P of one tile, computed again: 2^(S - LSE), 0 where a query may not look. Both in powers of two."""
    keep = (keys[None, :] <= last_seen[:, None]) & (keys[None, :] < stop)
    return tl.where(keep, tl.exp2(s - lse[:, None]), 0.0)


@triton.jit
def query_gradient_kernel(
    Q, K, V, DO, LSE, DELTA, DQ, LENGTHS, scale,
    q_b, q_h, q_row, k_b, k_h, k_row, v_b, v_h, v_row, do_b, do_h, do_row, L, S, H, R,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
    CAUSAL: tl.constexpr, PADDED: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """dQ of BLOCK_Q queries: they stay, and the tiles of keys go by. dQ is laid out as (B, H, L, D)."""
    block, head = tl.program_id(0), tl.program_id(1)
    b, h = (head // H).to(tl.int64), (head % H).to(tl.int64)
    rows, width = block * BLOCK_Q + tl.arange(0, BLOCK_Q), tl.arange(0, BLOCK_D)
    mine = (rows[:, None] < L) & (width[None, :] < D)
    q = tl.load(Q + b * q_b + h * q_h + rows[:, None] * q_row + width[None, :], mask=mine, other=0.0)
    do = tl.load(DO + b * do_b + h * do_h + rows[:, None] * do_row + width[None, :], mask=mine, other=0.0)
    lse = tl.load(LSE + head.to(tl.int64) * L + rows, mask=rows < L, other=0.0) * LOG2_E
    delta = tl.load(DELTA + head.to(tl.int64) * L + rows, mask=rows < L, other=0.0)
    if UPCAST:
        q, do = q.to(tl.float32), do.to(tl.float32)
    K += b * k_b + h // R * k_h
    V += b * v_b + h // R * v_h
    stop = S
    if PADDED:
        stop = tl.load(LENGTHS + b)
    last_seen, end = tl.zeros([BLOCK_Q], tl.int32) + S, stop
    if CAUSAL:
        last_seen = rows + (S - L)
        end = tl.minimum(stop, tl.maximum(block * BLOCK_Q + BLOCK_Q + S - L, 0))
    dq = tl.zeros([BLOCK_Q, BLOCK_D], tl.float32)
    for start in range(0, end, BLOCK_K):
        keys = start + tl.arange(0, BLOCK_K)
        there = (keys[:, None] < stop) & (width[None, :] < D)
        k = tl.load(K + keys[:, None] * k_row + width[None, :], mask=there, other=0.0)  # (BLOCK_K, BLOCK_D)
        v = tl.load(V + keys[:, None] * v_row + width[None, :], mask=there, other=0.0)
        if UPCAST:
            k, v = k.to(tl.float32), v.to(tl.float32)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * (scale * LOG2_E)  # (BLOCK_Q, BLOCK_K)
        p = shares(s, lse, keys, stop, last_seen)
        dp = tl.dot(do, tl.trans(v), input_precision="ieee")
        ds = p * (dp - delta[:, None]) * scale
        dq = tl.dot(ds.to(k.dtype), k, dq, input_precision="ieee")  # (BLOCK_Q, BLOCK_D)
    place = head.to(tl.int64) * L * D + rows[:, None] * D + width[None, :]
    tl.store(DQ + place, dq.to(DQ.dtype.element_ty), mask=mine)


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
    block, head, G = tl.program_id(0), tl.program_id(1), H // R
    b, g = (head // G).to(tl.int64), (head % G).to(tl.int64)
    keys, width = block * BLOCK_K + tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_D)
    mine = (keys[:, None] < S) & (width[None, :] < D)
    k = tl.load(K + b * k_b + g * k_h + keys[:, None] * k_row + width[None, :], mask=mine, other=0.0)
    v = tl.load(V + b * v_b + g * v_h + keys[:, None] * v_row + width[None, :], mask=mine, other=0.0)
    if UPCAST:
        k, v = k.to(tl.float32), v.to(tl.float32)
    stop = S
    if PADDED:
        stop = tl.load(LENGTHS + b)
    first = 0  # queries before it see none of these keys
    if CAUSAL:
        first = tl.maximum(block * BLOCK_K - (S - L), 0) // BLOCK_Q * BLOCK_Q
    dk = tl.zeros([BLOCK_K, BLOCK_D], tl.float32)
    dv = tl.zeros([BLOCK_K, BLOCK_D], tl.float32)
    for r in range(0, R):
        h = g * R + r
        row_of_head = (b * H + h) * L
        for start in range(first, L, BLOCK_Q):
            rows = start + tl.arange(0, BLOCK_Q)
            there = (rows[:, None] < L) & (width[None, :] < D)
            q = tl.load(Q + b * q_b + h * q_h + rows[:, None] * q_row + width[None, :], mask=there, other=0.0)
            do = tl.load(DO + b * do_b + h * do_h + rows[:, None] * do_row + width[None, :], mask=there, other=0.0)
            lse = tl.load(LSE + row_of_head + rows, mask=rows < L, other=0.0) * LOG2_E
            delta = tl.load(DELTA + row_of_head + rows, mask=rows < L, other=0.0)
            if UPCAST:
                q, do = q.to(tl.float32), do.to(tl.float32)
            last_seen = tl.zeros([BLOCK_Q], tl.int32) + S
            if CAUSAL:
                last_seen = rows + (S - L)
            s = tl.dot(q, tl.trans(k), input_precision="ieee") * (scale * LOG2_E)  # (BLOCK_Q, BLOCK_K)
            p = shares(s, lse, keys, stop, last_seen)
            dv = tl.dot(tl.trans(p.to(do.dtype)), do, dv, input_precision="ieee")  # (BLOCK_K, BLOCK_D)
            dp = tl.dot(do, tl.trans(v), input_precision="ieee")
            ds = p * (dp - delta[:, None]) * scale
            dk = tl.dot(tl.trans(ds.to(q.dtype)), q, dk, input_precision="ieee")  # (BLOCK_K, BLOCK_D)
    place = head.to(tl.int64) * S * D + keys[:, None] * D + width[None, :]
    tl.store(DK + place, dk.to(DK.dtype.element_ty), mask=mine)
    tl.store(DV + place, dv.to(DV.dtype.element_ty), mask=mine)


# ------------------------------------------------------------------------------ starting them


class Tiles(NamedTuple):
    """Sizes of the tiles, and what the compiler is told: warps that share a tile, tiles fetched ahead."""

    block_q: int
    block_k: int
    num_warps: int
    num_stages: int


def forward_tiles(dtype: torch.dtype, d_head: int, arch: int = 90) -> Tiles:
    """Larger tiles reuse what they load; they must fit the registers and the fast memory of a core.

    arch: 80 for A100, 90 for H100 and H200. float32 needs twice the room, and no matrix unit does it.
    """
    if dtype == torch.float32:
        return Tiles(32, 32, 4, 1) if d_head <= 64 else Tiles(32, 32, 8, 1)
    if d_head <= 64:
        return Tiles(128, 64, 8, 2) if arch < 90 else Tiles(128, 128, 8, 3)
    return Tiles(128, 64, 8, 2) if arch < 90 else Tiles(128, 128, 8, 2)


def backward_tiles(dtype: torch.dtype, d_head: int, arch: int = 90) -> Tiles:
    """Two gradients are summed up at once, so the tiles are smaller."""
    if dtype == torch.float32:
        return Tiles(32, 32, 4, 1) if d_head <= 64 else Tiles(32, 32, 8, 1)
    return Tiles(64, 64, 4, 1) if d_head <= 64 else Tiles(64, 64, 8, 1)


class Plan(NamedTuple):
    """How a call is run: where, with which tiles, and the numbers that every kernel is given."""

    backend: str
    forward: Tiles
    backward: Tiles
    lengths: Tensor | None
    causal: bool


def available() -> dict[str, str]:
    """Each backend that there is, and in words whether this machine can run it: "yes", or what is missing."""
    cuda = torch.cuda.is_available()
    real = triton is not stand_in
    missing = "Triton is not installed (pip install triton, on Linux)"
    interpreted = "set TRITON_INTERPRET=1 before Triton is imported"
    return {
        "triton": missing if not real else "yes" if cuda else "there is no CUDA device",
        "interpreter": missing if not real else "yes" if _interpreted() else interpreted,
        "stand-in": "yes",
    }


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
    in float32. For float64 use `mha_lesson.pytorch.online.tiled_attention`.
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
    def backward(ctx, d_out):
        return *_backward(*ctx.saved_tensors, _rows_in_line(d_out), ctx.plan), None


def _forward(q, k, v, plan: Plan):
    B, H, L, _ = q.shape
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    lse = torch.empty(B, H, L, dtype=torch.float32, device=q.device)
    grid = (triton.cdiv(L, plan.forward.block_q), B * H)
    steps = [n for x in (q, k, v, out) for n in x.stride()[:3]]
    _start(forward_kernel, grid, [q, k, v, out, lse], steps, q, k, plan, plan.forward)
    return out, lse


def _backward(q, k, v, out, lse, d_out, plan: Plan):
    (B, H, L, _), (G, S) = q.shape, k.shape[1:3]
    delta = (d_out.float() * out.float()).sum(-1)  # (B, H, L)
    d_q, d_k, d_v = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
    steps = [n for x in (q, k, v, d_out) for n in x.stride()[:3]]
    grid = (triton.cdiv(L, plan.backward.block_q), B * H)
    _start(query_gradient_kernel, grid, [q, k, v, d_out, lse, delta, d_q], steps, q, k, plan, plan.backward)
    grid = (triton.cdiv(S, plan.backward.block_k), B * G)
    _start(key_gradient_kernel, grid, [q, k, v, d_out, lse, delta, d_k, d_v], steps, q, k, plan, plan.backward)
    return d_q, d_k, d_v


def _start(kernel, grid, tensors, steps, q, k, plan: Plan, tiles: Tiles) -> None:
    """Start all programs of a kernel, on the backend of the plan."""
    (H, L, D), (G, S) = q.shape[1:], k.shape[1:3]
    if 0 in grid or S == 0:
        return _nothing_to_see(tensors)
    lengths = tensors[0] if plan.lengths is None else plan.lengths  # never read then
    numbers = {
        "D": D, "BLOCK_D": triton.next_power_of_2(D), "BLOCK_Q": tiles.block_q, "BLOCK_K": tiles.block_k,
        "CAUSAL": plan.causal, "PADDED": plan.lengths is not None,
        "UPCAST": plan.backend == "interpreter" and q.dtype == torch.bfloat16,  # its dot is wrong there (triton #11584)
        "num_warps": tiles.num_warps, "num_stages": tiles.num_stages,
    }  # fmt: skip
    arguments = [*tensors, lengths, D**-0.5, *steps, L, S, H, H // G]
    if plan.backend == "stand-in":
        stand_in.run(kernel, grid, *arguments, **numbers)
    else:
        kernel[grid](*arguments, **numbers)


def _nothing_to_see(tensors) -> None:
    """No query or no key: outputs and gradients are 0, and LSE is -inf."""
    for x in tensors[3:]:
        x.fill_(float("-inf") if x.dim() == 3 else 0)


def _rows_in_line(x: Tensor) -> Tensor:
    """The kernels step through the width one number at a time; all other steps may be any."""
    return x if x.stride(-1) == 1 else x.contiguous()


# ------------------------------------------------------------------------------ what is refused


def _plan(q, k, v, causal, lengths, backend, block_q, block_k) -> Plan:
    _check(q, k, v)
    backend = _choose(backend, q)
    arch = 10 * torch.cuda.get_device_capability(q.device)[0] if q.is_cuda else 90
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
                f"mha_lesson.pytorch.online.tiled_attention."
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
    lengths = torch.as_tensor(lengths, device=q.device)
    if lengths.shape != q.shape[:1] or lengths.dtype.is_floating_point or lengths.dtype == torch.bool:
        raise ValueError(
            f"lengths: expected one whole number for each of the {q.shape[0]} sequences, got {lengths.dtype} "
            f"of shape {tuple(lengths.shape)}."
        )
    if ((lengths < 0) | (lengths > k.shape[2])).any():
        raise ValueError(f"lengths: expected 0 to {k.shape[2]}, the number of keys, got {lengths.tolist()}.")
    return lengths.to(torch.int32)


# ------------------------------------------------------------------------------ ahead of time


@cache
def compile_ahead(kernel_name: str, arch: int, dtype: torch.dtype, d_head: int, causal: bool = True):
    """What Triton makes of a kernel for a GPU that need not be there: its `.asm["ptx"]`, `.asm["cubin"]`.

    kernel_name: "forward_kernel", "query_gradient_kernel" or "key_gradient_kernel". arch: 80, 90.
    """
    if triton is stand_in:
        raise ModuleNotFoundError("compile_ahead needs Triton, and this Python has none: pip install triton (Linux).")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = globals()[kernel_name]
    tiles = (forward_tiles if kernel_name == "forward_kernel" else backward_tiles)(dtype, d_head, arch)
    short = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}[dtype]
    fixed = {
        "D": d_head, "BLOCK_D": triton.next_power_of_2(d_head), "BLOCK_Q": tiles.block_q, "BLOCK_K": tiles.block_k,
        "CAUSAL": causal, "PADDED": False, "UPCAST": False,
    }  # fmt: skip
    kinds = {"LSE": "*fp32", "DELTA": "*fp32", "LENGTHS": "*i32", "scale": "fp32"}
    signature = {
        name: "constexpr" if name in fixed else kinds.get(name, f"*{short}" if name.isupper() and len(name) <= 2
                                                          and name not in ("L", "S", "H", "R") else "i32")
        for name in kernel.arg_names
    }  # fmt: skip
    aligned = {  # addresses and steps are multiples of 16, as PyTorch makes them
        (i,): [["tt.divisibility", 16]]
        for i, (name, kind) in enumerate(signature.items())
        if kind.startswith("*") or name.endswith(("_b", "_h", "_row"))
    }
    constants = {(kernel.arg_names.index(name),): value for name, value in fixed.items()}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=aligned)
    options = {"num_warps": tiles.num_warps, "num_stages": tiles.num_stages}
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
