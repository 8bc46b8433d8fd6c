"""What is timed on a device, and with which clock.

    q, k, v (B, H, N, D) -> (B, H, N, D)      B·N and H·D the same at every size: the same number of
                                              tokens and features, only their arrangement changes

    naive                the (N, N) array in the open
    SDPA default         torch's function, which picks an implementation by itself
    SDPA <name>          the same, told which one: FLASH_ATTENTION, EFFICIENT_ATTENTION, CUDNN_ATTENTION, MATH
    flash_attention      ours, mha_lesson.pytorch.cores.flash_triton
    FlexAttention        torch's compiler makes a kernel for the mask

A device works off a queue, so this machine's clock would time the handing over. `Cuda.seconds` puts
two marks into the queue and asks for the time between them. In front of them goes the overwriting of
a buffer: it empties the cache of what the last form left there, and while it runs, the work behind
it is handed over, so that the device does not wait for Python between the marks.
"""

import itertools
from collections.abc import Callable
from dataclasses import asdict, dataclass

from mha_lesson.benchmark.harness import by_the_clock

BASE = "SDPA default"
OURS = "flash_attention"
FLEX = "FlexAttention"
BACKENDS = ("FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION", "MATH")
OPERATIONS = {  # what SDPA calls -> the backend that it is; MATH is made of plain operations
    "_scaled_dot_product_flash_attention": "FLASH_ATTENTION",
    "_scaled_dot_product_flash_attention_for_cpu": "FLASH_ATTENTION",
    "_scaled_dot_product_efficient_attention": "EFFICIENT_ATTENTION",
    "_scaled_dot_product_cudnn_attention": "CUDNN_ATTENTION",
}


@dataclass(frozen=True)
class Cell:
    """One place in the tables: what all forms are timed on."""

    n: int
    d: int
    causal: bool
    backward: bool
    batch: int
    heads: int

    def facts(self) -> dict:
        return asdict(self)

    def __str__(self):
        mask, passes = "causal" if self.causal else "no mask", "forward+backward" if self.backward else "forward"
        return f"N = {self.n}, D = {self.d}, {mask}, {passes}"

    def flops(self) -> float:
        """Of both products, halved if causal. Backwards has five products, forwards two."""
        from mha_lesson.steps.gpu import attention_flops

        forward = attention_flops(self.batch, self.heads, self.n, self.n, self.d, self.causal)
        return forward * (3.5 if self.backward else 1)

    def bytes(self, form: str) -> float:
        """To and from memory, about: forwards Q, K, V, O; backwards those and dO, dQ, dK, dV, twice as much."""
        from mha_lesson.steps.gpu import attention_bytes

        fused = form not in ("naive", "SDPA MATH")
        forward = attention_bytes(self.batch, self.heads, self.n, self.n, self.d, fused=fused)
        return forward * (3 if self.backward else 1)


# ------------------------------------------------------------------------------ devices


class Cuda:
    """The first CUDA device."""

    name = "cuda"

    def __init__(self):
        import torch

        self.facts = torch.cuda.get_device_properties(0)
        self.cache_bytes = getattr(self.facts, "L2_cache_size", 2**26)
        self.cover = torch.empty(min(2**30, self.facts.total_memory // 20), dtype=torch.uint8, device="cuda")
        self.marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)]

    def seconds(self, run: Callable) -> float:
        begin, end = self.marks
        self.cover.zero_()
        begin.record()
        run()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3

    def wait(self) -> None:
        """Until the queue is empty. An error of a kernel shows up here, and stays."""
        import torch

        torch.cuda.synchronize()

    def tidy(self) -> None:
        import torch

        torch.cuda.empty_cache()

    def peak_bytes(self, run: Callable):
        """(what run() gives, the most memory held above what was held before)"""
        import torch

        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        result = run()
        self.wait()
        return result, torch.cuda.max_memory_allocated() - before

    def kernels(self, run: Callable) -> list[str]:
        """Names of what runs on the device, the second time: a first run may prepare something."""
        from torch.autograd import DeviceType
        from torch.profiler import ProfilerActivity, profile

        run()
        self.wait()
        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            run()
            self.wait()
        return sorted({event.name for event in seen.events() if event.device_type == DeviceType.CUDA})


class Cpu:
    """For a dry run: the same path on this machine, with its clock."""

    name = "cpu"
    facts = None
    cache_bytes = 2**10

    def seconds(self, run: Callable) -> float:
        return by_the_clock(run)

    def wait(self) -> None:
        """It is done when it returns."""

    def tidy(self) -> None:
        """Nothing is kept."""

    def peak_bytes(self, run: Callable):
        return run(), None

    def kernels(self, run: Callable) -> list[str]:
        return []


# ------------------------------------------------------------------------------ forms


def fast_forms(cell: Cell) -> dict[str, Callable]:
    """name -> attend(q, k, v), all but the one that compiles for long."""
    from mha_lesson.pytorch.cores.flash_triton import flash_attention

    forms = {BASE: lambda q, k, v: sdpa(q, k, v, cell.causal)}
    forms |= {f"SDPA {name}": lambda q, k, v, name=name: sdpa(q, k, v, cell.causal, name) for name in BACKENDS}
    forms[OURS] = lambda q, k, v: flash_attention(q, k, v, causal=cell.causal)
    forms["naive"] = lambda q, k, v: naive(q, k, v, cell.causal)
    return forms


def sdpa(q, k, v, causal: bool, backend: str | None = None):
    """torch's function; with a backend it uses that one, or raises an error."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    if backend is None:
        return scaled_dot_product_attention(q, k, v, is_causal=causal)
    with sdpa_kernel([getattr(SDPBackend, backend)]):
        return scaled_dot_product_attention(q, k, v, is_causal=causal)


def naive(q, k, v, causal: bool):
    """As in most courses, all in one format."""
    import torch

    scores = q @ k.mT / q.shape[-1] ** 0.5  # (B, H, N, N)
    if causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(future, -torch.inf)
    return torch.softmax(scores, dim=-1) @ v


def flex_form(cell: Cell, device) -> Callable:
    """FlexAttention, compiled for exactly this size. On the CPU as it is: compiling there takes too long to try."""
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    blocks = None
    if cell.causal:
        blocks = create_block_mask(lambda b, h, i, j: i >= j, None, None, cell.n, cell.n, device=device.name)
    if device.name == "cuda":
        torch._dynamo.reset()  # after some sizes the compiler would give up, and not say so
        compiled = torch.compile(flex_attention, dynamic=False, fullgraph=True)
        return lambda q, k, v: compiled(q, k, v, block_mask=blocks)
    return lambda q, k, v: flex_attention(q, k, v, block_mask=blocks)


def inputs(cell: Cell, device, dtype: str) -> list[tuple]:
    """Sets of (q, k, v, gradient of the output), each (B, H, N, D); more than the device's cache holds."""
    import torch

    shape = (cell.batch, cell.heads, cell.n, cell.d)
    torch.manual_seed(cell.n)

    def draw(grad):
        return torch.randn(shape, device=device.name, dtype=getattr(torch, dtype)).requires_grad_(grad)

    bytes_of_a_set = 3 * cell.batch * cell.heads * cell.n * cell.d * 2
    sets = max(2, -(-2 * device.cache_bytes // bytes_of_a_set))
    return [(*(draw(cell.backward) for _ in range(3)), draw(False)) for _ in range(sets)]


def one_pass(attend: Callable, sets: list[tuple], backward: bool) -> Callable:
    """A function that runs once on the next set: the output, or the gradients of q, k, v."""
    import torch

    turn = itertools.cycle(sets)

    def forwards():
        q, k, v, _ = next(turn)
        with torch.no_grad():
            return (attend(q, k, v),)

    def both():
        q, k, v, probe = next(turn)
        return torch.autograd.grad(attend(q, k, v), (q, k, v), probe)

    return both if backward else forwards


# ------------------------------------------------------------------------------ who ran


def default_backend(cell: Cell, device, dtype: str) -> dict:
    """What SDPA picks when nobody tells it, proved twice: by the operation that it calls, and by
    the kernels that run, beside those of each backend when it is forced."""
    q, k, v, _ = inputs(cell, device, dtype)[0]
    operation = called_operation(lambda: sdpa(q, k, v, cell.causal))
    kernels = device.kernels(lambda: sdpa(q, k, v, cell.causal))
    same = []
    for name in BACKENDS if kernels else ():
        try:
            forced = device.kernels(lambda name=name: sdpa(q, k, v, cell.causal, name))
        except RuntimeError:  # not for these inputs
            continue
        same += [name] * (forced == kernels)
    return {
        "n": cell.n, "d": cell.d, "causal": cell.causal, "backend": OPERATIONS.get(operation, "MATH"),
        "operation": operation, "kernels": kernels, "same_kernels_as": same,
    }  # fmt: skip


def called_operation(run: Callable) -> str:
    """Which fused operation SDPA called, "plain operations" if none: asked of torch's dispatcher."""
    from torch.utils._python_dispatch import TorchDispatchMode

    names = []

    class Listen(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            names.append(func.__name__.split(".")[0])
            return func(*args, **(kwargs or {}))

    with Listen():
        run()
    return next((name for name in names if name in OPERATIONS), "plain operations")
