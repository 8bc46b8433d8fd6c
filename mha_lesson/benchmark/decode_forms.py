"""The command `decode`: one new token against N cached keys, with shared key heads.

    q (1, H, 1, D)    K, V (1, G, N, D) of each of 8 layers    ->    (8, 1, H, 1, D)

    H query heads, G key/value heads, N cached tokens, D head width

A token needs every key and value once and computes little with each, so time is what it takes to
fetch them: G / H of the time with H key heads, if each key is fetched once. A layer's cache alone
might stay in the processor's own memory from one round to the next, as it never does in use. So
the caches of 8 layers take turns.

Sources: Shazeer 2019, "Fast Transformer Decoding"; Ainslie et al. 2023, "GQA".
"""

from collections.abc import Callable

from mha_lesson.benchmark.comparison import Comparison, needs_torch, report

LAYERS = 8
FORMS = ("SDPA", "SDPA enable_gqa", "grouped_attention")
GOALS = "Goals at N = 8192, one thread, against full heads: 0.45 with a quarter of the key heads, 0.15 with one."


def decode_forms(n: int, heads: int = 32, d_head: int = 64, dtype: str = "float32") -> dict[str, Callable]:
    """SDPA on as many key heads as queries; with fewer, its own `enable_gqa`, and the folded form."""
    from torch.nn.functional import scaled_dot_product_attention as sdpa

    from mha_lesson.pytorch.cache import grouped_attention

    q, caches = _inputs(n, heads, d_head, dtype)
    forms = {named("SDPA", heads): _each_layer(sdpa, q, caches[heads])}
    for G in key_heads(heads)[1:]:
        forms[named("SDPA enable_gqa", G)] = _each_layer(_enable_gqa, q, caches[G])
        forms[named("grouped_attention", G)] = _each_layer(grouped_attention, q, caches[G])
    return forms


def key_heads(heads: int) -> list[int]:
    """As many as query heads, a quarter of them, one."""
    return sorted({heads, max(heads // 4, 1) if heads % 4 == 0 else heads, 1}, reverse=True)


def named(form: str, G: int) -> str:
    return f"{form}, {G} key head{'s' if G > 1 else ''}"


def _enable_gqa(q, k, v):
    from torch.nn.functional import scaled_dot_product_attention

    return scaled_dot_product_attention(q, k, v, enable_gqa=True)


def _each_layer(attend, q, layers):
    import torch

    def run():
        with torch.no_grad():
            return torch.stack([attend(q, k, v) for k, v in layers])  # (layers, 1, H, 1, D)

    return run


def _inputs(n, heads, d_head, dtype):
    """One query, and for each number of key heads the keys and values of 8 layers."""
    import torch

    torch.manual_seed(n)
    dtype = getattr(torch, dtype)
    caches = {
        G: [tuple(torch.randn(2, 1, G, n, d_head, dtype=dtype)) for _ in range(LAYERS)]  # K, V (1, G, N, D)
        for G in key_heads(heads)
    }
    return torch.randn(1, heads, 1, d_head, dtype=dtype), caches


def decode_reference(n, heads, d_head, dtype):
    """Each key head repeated for its query heads, then the textbook form, in float64."""
    import torch

    q, caches = _inputs(n, heads, d_head, dtype)

    def attend(k, v):
        k, v = (x.double().repeat_interleave(heads // x.shape[1], dim=1) for x in (k, v))  # (1, H, N, D)
        return torch.softmax(q.double() @ k.mT / d_head**0.5, dim=-1) @ v  # (1, H, 1, D)

    expected = {G: torch.stack([attend(k, v) for k, v in layers]).numpy() for G, layers in caches.items()}
    return {named(form, G): right for form in FORMS for G, right in expected.items()}


def run_decode(options) -> int:
    if needs_torch("decode"):
        return 1
    comparison = Comparison(
        "mha_lesson.benchmark:decode_forms",
        decode_reference,
        (named("SDPA", options.heads),),
        lambda name, n, heads, itemsize: 0,
        rows=lambda n: slice(None),  # one query, and all of it
        note=GOALS,
    )
    return report(comparison, f"one new token, {LAYERS} layers, N cached tokens", options)
