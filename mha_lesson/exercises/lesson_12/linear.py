"""Exercise 12.linear."""

import numpy as np

from mha_lesson.exercises.engine import Exercise, Mistakes, Probe
from mha_lesson.exercises.engine.probes import usual_forms, wave
from mha_lesson.steps.long_context import features, linear_attention, linear_attention_chunked


def _weighed(query, key, value, weigh, keep=np.tril):
    """By the whole table: weights weigh(query, key), of which `keep` leaves some."""
    weights = keep(weigh(query, key))
    return weights @ value / weights.sum(axis=1, keepdims=True)


def _divided_by_columns(query, key, value):
    weights = np.tril(_phi(query, key))
    return weights / weights.sum(axis=0) @ value


def _phi(query, key):
    return features(query) @ features(key).T


def _with_features(phi):
    return lambda query, key, value: _weighed(query, key, value, lambda q, k: phi(q) @ phi(k).T)


def _cumulated(query, key, value):
    """Right: running sums of all tokens at once."""
    query, key = features(query), features(key)
    states = np.cumsum(key[:, :, None] * value[:, None, :], axis=0)  # (L, D, V)
    totals = np.cumsum(key, axis=0)  # (L, D)
    return np.einsum("ld,ldv->lv", query, states) / np.einsum("ld,ld->l", query, totals)[:, None]


def _with_ones(query, key, value, more=0.0):
    """Right: the denominator is a column of the state, for values that are all 1."""
    weights = np.tril(_phi(query, key))
    mix = weights @ np.hstack([value, np.ones((len(value), 1))])
    return mix[:, :-1] / (mix[:, -1:] + more)


def _earlier(query, key, value, first):
    """Each token reads the state before its own key and value are in it; `first` is what the first one gets."""
    return np.concatenate([np.full((1, value.shape[1]), first), _weighed(query[1:], key[:-1], value[:-1], _phi)])


def _state_transposed(query, key, value):
    """v k^T in place of k v^T: fits only if keys and values have the same width."""
    query, key = features(query), features(key)
    states = np.cumsum(value[:, :, None] * key[:, None, :], axis=0)  # (L, V, D)
    totals = np.cumsum(key, axis=0)  # (L, D)
    return np.stack([q @ s / (q @ z) for q, s, z in zip(query, states, totals, strict=True)])


mistake = Mistakes()


@mistake
def not_causal(q, k, v):
    """Features and sums are right. But each token sees the whole text: state and total may hold only tokens up to its
    own. (You keep a list of states? += changes the one array in all its places: append a copy.)"""
    return _weighed(q, k, v, _phi, keep=lambda w: w)


@mistake
def not_itself(q, k, v):
    """The state runs along. But you read it before the token's own key and value are in: a token sees itself too (the
    first one sees nothing, and 0 / 0 is NaN). Add first, then read."""
    return _earlier(q, k, v, np.nan)


@mistake
def not_itself_guarded(q, k, v):
    """The state runs along. But you read it before the token's own key and value are in: a token sees itself too, and
    the first one need not get 0. Add first, then read."""
    return _earlier(q, k, v, 0.0)


mistake.edit(
    "total_of_all",
    """The state runs along. But the denominator is the sum over all keys: it runs along too, z_t.""",
    old="total += key[t]",
    new="total = key.sum(0)",
)

mistake.edit(
    "state_of_all",
    """The denominator runs along. But the state holds the whole text from the start: it runs along too, S_t.""",
    old="state += np.outer(key[t], value[t])",
    new="state = key.T @ value",
)

mistake.edit(
    "total_of_last",
    """The state adds up. But the denominator is that of the last key alone: total += phi(k_t).""",
    old="total += key[t]",
    new="total = key[t]",
)

mistake.edit(
    "state_of_last",
    """The denominator adds up. But the state holds the last token alone: state += np.outer(...).""",
    old="state += np.outer(key[t], value[t])",
    new="state = np.outer(key[t], value[t])",
)

mistake.function(
    "state_transposed",
    """Sums and features are right. But the state is v k^T: it fits only where keys and values have the same width, and
    mixes them. np.outer(phi(k_t), v_t), (D, V).""",
    _state_transposed,
)

mistake.edit(
    "not_divided",
    """The numerator is right. But the weights do not add up to 1 by themselves: divide by phi(q) · z.""",
    old=" / max(query[t] @ total, TINY)",
    new="",
)

mistake.edit(
    "divided_by_count",
    """The numerator is right. But the weights add up to phi(q) · z, not to the number of tokens.""",
    old=" / max(query[t] @ total, TINY)",
    new=" / (t + 1)",
)

mistake.function(
    "divided_by_columns",
    """The weights are right before they are divided. But each column was made to add up to 1: it is the row, the
    weights of one query, axis 1.""",
    _divided_by_columns,
)

mistake.edit(
    "divided_by_keys",
    """The numerator is right. But the denominator is the sum of the keys' features alone: the query's belong to it,
    phi(q) · z.""",
    old="query[t] @ total",
    new="total.sum()",
)

mistake.edit(
    "values_too",
    """The sums run along. But phi is for queries and keys, which make the weights: values go in as they are.""",
    old="value[t])",
    new="features(value[t]))",
)


@mistake
def softmax(q, k, v):
    """This is exact causal attention. But linear attention is asked for: phi(q) · phi(k) in place of exp(q · k /
    sqrt(D)), so that a running sum is enough."""
    return _weighed(q, k, v, lambda q, k: np.exp(q @ k.T / np.sqrt(q.shape[1])))


@mistake
def softmax_unscaled(q, k, v):
    """This is causal attention with exp(q · k). But linear attention is asked for: phi(q) · phi(k) in its place, so
    that a running sum is enough."""
    return _weighed(q, k, v, lambda q, k: np.exp(q @ k.T))


@mistake
def no_features(q, k, v):
    """The sums run along. But q and k went in as they are: products may be negative, and the denominator may vanish.
    phi(x) = x + 1 for x > 0, exp(x) otherwise, for both."""
    return _weighed(q, k, v, lambda q, k: q @ k.T)


@mistake
def features_of_keys_only(q, k, v):
    """The keys have their features. But the query needs them too: phi(q)."""
    return _weighed(q, k, v, lambda q, k: q @ features(k).T)


@mistake
def features_of_queries_only(q, k, v):
    """The queries have their features. But the keys need them too: phi(k)."""
    return _weighed(q, k, v, lambda q, k: features(q) @ k.T)


mistake.function(
    "relu",
    """The sums run along. But phi is elu(x) + 1, which is exp(x) below 0, and not 0: with relu a query may see nothing
    at all.""",
    _with_features(lambda x: np.maximum(x, 0)),
)

mistake.function(
    "relu_plus_one",
    """Above 0 the features are right. But below 0 phi is exp(x), not 1.""",
    _with_features(lambda x: np.maximum(x, 0) + 1),
)

mistake.function(
    "elu",
    """The shape of phi is right. But it is elu(x) + 1: without the 1 it is negative below 0.""",
    _with_features(lambda x: features(x) - 1),
)

mistake.function(
    "elu_plus_two",
    """Above 0 you add 1, good. But below 0 phi is exp(x) as it is, without another 1.""",
    _with_features(lambda x: np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)) + 1)),
)

mistake.function(
    "exponential",
    """Features are positive, good. But phi is x + 1 above 0; you took exp(x) everywhere.""",
    _with_features(np.exp),
)

mistake.function(
    "softmax_of_width",
    """Features are positive, good. But you took a softmax over the width; phi looks at each number by itself, x + 1
    above 0 and exp(x) below.""",
    _with_features(lambda x: np.exp(x) / np.exp(x).sum(-1, keepdims=True)),
)

mistake.edit(
    "scaled",
    """The sums run along. But there is no 1 / sqrt(D) here: without an exponential nothing saturates, and phi is not
    linear, so it changes the result.""",
    old="features(query), features(key)",
    new="features(query / np.sqrt(query.shape[1])), features(key)",
)


@mistake
def future(q, k, v):
    """The sums run along. But from the end: each token sees itself and what comes after."""
    return _weighed(q, k, v, _phi, keep=np.triu)


@mistake
def last_only(q, k, v):
    """The result is a mean of values. But of one: each token gets its own value alone. Keep what came before, state +=
    ... and total += ..."""
    return v.copy()


LINEAR = Exercise(
    id="12.linear",
    signature="linear(q, k, v)",
    solution=linear_attention,
    helpers=(features,),
    probes=lambda: [
        Probe((wave(5, 3), wave(5, 3, step=0.9, start=0.1), wave(5, 2, step=1.3)), "5 tokens, values of width 2"),
        Probe((wave(7, 2, size=2.0), wave(7, 2, step=1.7, size=2.0), wave(7, 5)), "7 tokens, values of width 5"),
        Probe((wave(4, 3), wave(4, 3, step=0.9, start=0.1), wave(4, 3, step=1.3)), "values as wide as keys"),
        Probe((wave(5, 3, step=1.1, start=0.2, dtype=np.float32), wave(5, 3, step=0.6, start=0.4, dtype=np.float32),
               wave(5, 2, dtype=np.float32)), "5 tokens, float32"),
    ],
    mistakes=mistake.all,
    forms={
        "the table": lambda q, k, v: _weighed(q, k, v, _phi),
        "cumulated": _cumulated,
        "in chunks": lambda q, k, v: linear_attention_chunked(q, k, v, 2),
        "a column of ones": lambda q, k, v: _with_ones(q, k, v),
        "a tiny number in the denominator": lambda q, k, v: _with_ones(q, k, v, 1e-8),
        **usual_forms(linear_attention),
    },
    hints=(
        "Write phi first: np.where(x > 0, x + 1, np.exp(np.minimum(x, 0))).",
        "Go through the tokens. state (D, V) += np.outer(phi(k_t), v_t), and total (D,) += phi(k_t).",
        "Then out_t = phi(q_t) @ state / (phi(q_t) @ total).",
    ),
    well_done="The numbers are right. Where sums run along and no (L, L) table is made, D · V + D numbers are all the "
    "memory, however long the text.",
)  # fmt: skip
