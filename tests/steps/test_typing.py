"""The annotated shapes of the steps and of the layer are true, and catch wrong ones."""

import pytest

from tests.helpers import run_python

TYPED_CALLS = """
from jaxtyping import install_import_hook
with install_import_hook(["mha_lesson.steps", "mha_lesson.attention"], "beartype.beartype"):
    from mha_lesson.attention import *
    from mha_lesson.attention import MultiHeadAttention as Layer
    from mha_lesson.steps.embeddings import *
    from mha_lesson.steps.heads import *
    from mha_lesson.steps.lookup import *
    from mha_lesson.steps.masks import *
    from mha_lesson.steps.projections import *
    from mha_lesson.steps.scores import *
    from mha_lesson.steps.softmax import *
import numpy as np

def a(*shape, dtype=float):
    return np.ones(shape, dtype)

def b(*shape):
    return np.ones(shape, bool)
"""


def test_annotations_are_true():
    pytest.importorskip("jaxtyping")
    pytest.importorskip("beartype")
    done = run_python(
        TYPED_CALLS
        + """
for dtype in (np.float16, np.float32, np.float64):
    for lead in ((), (2,), (2, 3)):
        for L, S, H, D in ((5, 7, 3, 2), (1, 4, 1, 3), (4, 4, 2, 1), (7, 5, 2, 2)):
            E = H * D
            def f(*shape):
                return a(*shape, dtype=dtype)
            double(f(*lead, L)); soft_lookup(f(D), f(S, D), f(S, 4))
            ids = np.zeros((*lead, L), int)
            lookup(ids, f(9, E)); embed(ids, f(9, E))
            sinusoidal_positions(L, 2 * D); rotary(f(*lead, L, 2 * D), np.arange(L))
            rotary(f(*lead, L, 2 * D), np.arange(L) / 2, 10.0)
            add_positions(f(2, L, E), f(L + 1, E)); dot_product_variance(D)
            project(f(*lead, L, E), f(E, 11)); project(f(*lead, L, E), f(E, 11), f(11))
            qkv(f(*lead, L, E), f(E, 11), f(E, 11), f(E, 13))
            attention_scores(f(*lead, L, D), f(*lead, S, D))
            softmax(f(*lead, S)); masked_softmax(f(*lead, L, S), b(L, S))
            split_heads(f(*lead, L, E), H); merge_heads(f(*lead, H, L, D))
            output_projection(f(*lead, L, E), f(E, 11), f(11))
            output_projection(f(*lead, L, E), f(E, 11))
            causal_mask(L, S); window_mask(L, S, 2); padding_mask([1, S], S)
            combine_masks(b(L, S), b(2, S)); as_keep(b(L, S)); check_keep(b(L, S), (2, H, L, S))
            to_torch_sdpa(b(L, S)); from_torch_sdpa(b(L, S)); from_torch_mha(b(L, S))
            to_torch_mha(b(L, S)); to_torch_mha(b(2, 1, L, S), 2, H, L)
            from_torch_mha(f(L, S) * 0); from_torch_sdpa(f(L, S) * 0)
            scaled_dot_product_attention(f(*lead, L, D), f(*lead, S, D), f(*lead, S, 4), b(L, S))
            scaled_dot_product_attention(f(*lead, L, D), f(*lead, S, D), f(*lead, S, 4))
            weighted_sum(f(*lead, L, S), f(*lead, S, 4))
            weighted_sum(f(*lead, L, S), f(*lead, S, 4) * np.nan, b(L, S))
            if len(lead) < 2:
                w = [f(E, E), f(11, E), f(13, E), f(E, E)]
                for biases in ([], [f(E)] * 4):
                    layer = Layer(*w, H, *biases)
                    layer(f(*lead, L, E), f(*lead, S, 11), f(*lead, S, 13), b(L, S))
                params = {n: f(E, E) for n in ("w_q", "w_k", "w_v", "w_o")}
                params |= {n: f(E) for n in ("b_q", "b_k", "b_v", "b_o")}
                multi_head_attention(f(*lead, L, E), params, H)
                Layer.from_params(params, H)(f(*lead, L, E))
                Layer.random(E, H)(f(*lead, L, E), f(*lead, S, E))
print("all calls passed")
"""
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == "all calls passed\n"


def test_annotations_catch_wrong_shapes():
    pytest.importorskip("jaxtyping")
    pytest.importorskip("beartype")
    done = run_python(
        TYPED_CALLS
        + """
wrong = {
    "double": lambda: double(np.ones(3, int)),
    "soft_lookup query": lambda: soft_lookup(a(2), a(3, 4), a(3, 5)),
    "soft_lookup values": lambda: soft_lookup(a(4), a(3, 4), a(2, 5)),
    "lookup ids": lambda: lookup(a(3), a(4, 5)),
    "lookup table": lambda: lookup(np.zeros(3, int), a(4)),
    "embed": lambda: embed(np.zeros(3, int), a(4, 5, 6)),
    "positions": lambda: sinusoidal_positions(4.0, 6),
    "rotary pos": lambda: rotary(a(5, 4), np.arange(3)),
    "rotary x": lambda: rotary(np.ones((5, 4), int), np.arange(5)),
    "add_positions": lambda: add_positions(a(3, 4), a(3, 4)),
    "add_positions width": lambda: add_positions(a(2, 3, 4), a(3, 1)),
    "dot_product_variance": lambda: dot_product_variance(4.0),
    "project": lambda: project(a(2, 3), a(4, 5)),
    "project bias": lambda: project(a(2, 3), a(3, 5), a(1)),
    "qkv": lambda: qkv(a(2, 3), a(3, 4), a(3, 5), a(3, 4)),
    "scores width": lambda: attention_scores(a(2, 3), a(2, 4)),
    "scores batch": lambda: attention_scores(a(2, 5, 3), a(1, 5, 3)),
    "softmax": lambda: softmax(np.ones((2, 3), int)),
    "masked_softmax": lambda: masked_softmax(np.ones((2, 3), int), b(2, 3)),
    "split_heads": lambda: split_heads(a(6), 3),
    "split_heads heads": lambda: split_heads(a(5, 6), 3.0),
    "merge_heads": lambda: merge_heads(a(5, 6)),
    "output_projection": lambda: output_projection(a(5, 6), a(6, 4), a(6)),
    "causal_mask": lambda: causal_mask(3.0, 3),
    "window_mask": lambda: window_mask(3, 3, 1.5),
    "padding_mask": lambda: padding_mask([1], 2.0),
    "combine_masks": lambda: combine_masks(b(3, 3), b(2, 4)),
    "combine_masks axes": lambda: combine_masks(b(1, 3, 3), b(2, 3)),
    "to_torch_mha": lambda: to_torch_mha(b(2, 1, 3, 3), "2", 2),
    "sdpa width": lambda: scaled_dot_product_attention(a(5, 3), a(7, 4), a(7, 4)),
    "sdpa rows": lambda: scaled_dot_product_attention(a(5, 3), a(7, 3), a(6, 3)),
    "sdpa batch": lambda: scaled_dot_product_attention(a(2, 5, 3), a(1, 7, 3), a(2, 7, 3)),
    "weighted_sum": lambda: weighted_sum(a(5, 7), a(6, 3)),
    "multi_head_attention": lambda: multi_head_attention(a(5, 6), [], 3),
    "layer w_q": lambda: Layer(a(6, 5), a(6, 6), a(6, 6), a(6, 6), 3),
    "layer w_o": lambda: Layer(a(6, 6), a(6, 6), a(6, 6), a(6, 5), 3),
    "layer bias": lambda: Layer(a(6, 6), a(6, 6), a(6, 6), a(6, 6), 3, a(5)),
    "layer call": lambda: Layer.random(6, 3)(a(5, 6), a(1, 7, 6)),
    "layer batch": lambda: Layer.random(6, 3)(a(2, 5, 6), a(3, 7, 6)),
    "random": lambda: Layer.random(6.0, 3),
}
for name, call in wrong.items():
    try:
        call()
    except Exception as error:
        if "TypeCheck" not in type(error).__name__ and "Beartype" not in type(error).__name__:
            print(name, "ended in", type(error).__name__, error)
    else:
        print(name, "passed")
print(len(wrong), "calls")
"""
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == "40 calls\n"
