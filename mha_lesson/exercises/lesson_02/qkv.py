"""Exercise 02.qkv."""

import numpy as np

from mha_lesson.exercises.engine import Exercise, Mistakes, Probe
from mha_lesson.exercises.engine.probes import usual_forms, wave
from mha_lesson.steps.projections import project, qkv

mistake = Mistakes()


@mistake
def weights_transposed(x, w_q, w_k, w_v):
    """Each role has its own matrix, good. But you multiplied by W.T. nn.Linear stores (out, in) and uses x @ W.T; here
    W is (in, out), so x @ W."""
    return (x @ w_q.T, x @ w_k.T, x @ w_v.T)


mistake.edit(
    "tied_query_key",
    """The query and the value are right. But query and key use the same weights, so the score matrix is forced to be
    symmetric: 'i looks at j' = 'j looks at i'. The key needs w_k.""",
    old="project(x, w_k)",
    new="project(x, w_q)",
)

mistake.edit(
    "values_not_projected",
    """Query and key are right. But V is still the raw input. The values need their own projection w_v.""",
    old="project(x, w_v)",
    new="x",
)

mistake.edit(
    "keys_not_projected",
    """Query and value are right. But K is still the raw input. The keys need their own projection w_k.""",
    old="project(x, w_k)",
    new="x",
)

mistake.edit(
    "queries_not_projected",
    """Key and value are right. But Q is still the raw input. The queries need their own projection w_q.""",
    old="project(x, w_q)",
    new="x",
)

mistake.edit(
    "order",
    """All three products are right. But they come back as query, value, key; the order is query, key, value.""",
    old="project(x, w_k), project(x, w_v)",
    new="project(x, w_v), project(x, w_k)",
)


@mistake
def key_first(x, w_q, w_k, w_v):
    """All three products are right. But they come back as key, query, value; the order is query, key, value."""
    return (x @ w_k, x @ w_q, x @ w_v)


@mistake
def value_first(x, w_q, w_k, w_v):
    """All three products are right. But they come back as value, key, query; the order is query, key, value."""
    return (x @ w_v, x @ w_k, x @ w_q)


@mistake
def value_in_front(x, w_q, w_k, w_v):
    """All three products are right. But they come back as value, query, key; the order is query, key, value."""
    return (x @ w_v, x @ w_q, x @ w_k)


@mistake
def query_last(x, w_q, w_k, w_v):
    """All three products are right. But they come back as key, value, query; the order is query, key, value."""
    return (x @ w_k, x @ w_v, x @ w_q)


mistake.edit(
    "value_from_key",
    """Query and key are right. But the value uses w_k as well; what a word offers and what it hands over are two
    things: x @ w_v.""",
    old="project(x, w_v)",
    new="project(x, w_k)",
)

mistake.edit(
    "value_from_query",
    """Query and key are right. But the value uses w_q; it has a matrix of its own: x @ w_v.""",
    old="project(x, w_v)",
    new="project(x, w_q)",
)


@mistake
def all_the_same(x, w_q, w_k, w_v):
    """x @ w is the right product. But all three roles use w_q; then nothing tells looking from being found."""
    return (x @ w_q, x @ w_q, x @ w_q)


mistake.edit(
    "already_scaled",
    """The projections are right. But the query is already divided by sqrt(d); that comes with the scores, in lesson
    03.""",
    old="project(x, w_q)",
    new="project(x, w_q) / w_q.shape[1] ** 0.5",
)


@mistake
def weights_first(x, w_q, w_k, w_v):
    """With x = the identity it comes out right. But on other shapes the product does not fit: it is x @ w, neither w @
    x nor x.T @ w."""
    return (w_q @ x, w_k @ x, w_v @ x)


QKV = Exercise(
    id="02.qkv",
    signature="qkv(x, w_q, w_k, w_v)",
    solution=qkv,
    helpers=(project,),
    probes=lambda: [
        Probe((np.eye(2), np.array([[1.0, 2], [3, 4]]), np.array([[5.0, 6], [7, 8]]), np.array([[9.0, 10], [11, 12]])),
              "x = the identity, so each result shows its matrix"),
        Probe((wave(5, 3), wave(3, 3, step=0.4), wave(3, 3, step=0.9), wave(3, 3, step=1.3)), "5 words, 3 features"),
        Probe((wave(2, 3, 5, dtype=np.float32), *(wave(5, 7, step=s, dtype=np.float32) for s in (0.4, 0.9, 1.3))),
              "a batch of 2, matrices (5, 7), float32"),
    ],
    mistakes=mistake.all,
    forms={
        "one fused matrix": lambda x, w_q, w_k, w_v: np.split(x @ np.concatenate([w_q, w_k, w_v], 1), 3, axis=-1),
        "einsum": lambda x, w_q, w_k, w_v: tuple(np.einsum("...i,io->...o", x, w) for w in (w_q, w_k, w_v)),
        "one stacked array": lambda x, w_q, w_k, w_v: np.stack([x @ w for w in (w_q, w_k, w_v)]),
        **usual_forms(qkv),
    },
    hints=(
        "Three products with the same x on the left.",
        "x @ w_q takes each word's vector to its query. Key and value are made in the same way.",
        "return x @ w_q, x @ w_k, x @ w_v",
    ),
    well_done="One vector, three roles. Nothing is compared yet: that is the next step.",
)  # fmt: skip
