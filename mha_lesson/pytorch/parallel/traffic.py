"""How many bytes a process hands over to be sent: counted where it happens, and predicted.

    head_parallel_bytes = B · L · E · bytes of a number               forwards; as much again backwards
    ring_bytes          = 2 · B · G · n · D · bytes · (world - 1)     keys and values, n tokens a rank

Counted is what is handed to `torch.distributed`. What then goes over the wire is its affair: an
all-reduce round a ring sends 2 (world - 1) / world of its tensor from each rank (Patarasuk & Yuan
2009); a key that travels is sent as it is. The few numbers by which a ring compares its shapes at
the start are not counted.
"""

# Quoted word for word by tests/faults/faults.py: change both together.

from torch import Tensor

_open: list["Traffic"] = []  # those that count now, innermost last


class Traffic:
    """Bytes handed over while it is open:

    with Traffic() as traffic:
        ring_attention(q, k, v)
    traffic.bytes
    """

    def __init__(self):
        self.bytes = 0
        self.calls: dict[str, int] = {}  # how many times each way of sending was used

    def __enter__(self) -> "Traffic":
        _open.append(self)
        return self

    def __exit__(self, *_):
        _open.remove(self)


def count(kind: str, tensor: Tensor) -> Tensor:
    """The tensor, which is about to be sent, after it was counted."""
    for traffic in _open:
        traffic.bytes += tensor.numel() * tensor.element_size()
        traffic.calls[kind] = traffic.calls.get(kind, 0) + 1
    return tensor


def head_parallel_bytes(B: int, L: int, E: int, bytes_per_number: int = 4, backward: bool = False) -> int:
    """Bytes that each rank hands over: its part of the output, (B, L, E); with `backward` that of the gradient too."""
    return B * L * E * bytes_per_number * (2 if backward else 1)


def ring_bytes(B: int, kv_heads: int, tokens: int, d_head: int, world: int, bytes_per_number: int = 4) -> int:
    """Bytes that each rank hands over: `tokens` keys and values of one rank, world - 1 times."""
    return 2 * B * kv_heads * tokens * d_head * bytes_per_number * (world - 1)
