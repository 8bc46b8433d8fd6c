"""Exercise 09.find."""

from typing import Any

import numpy as np

from mha_lesson.exercises.engine import Exercise, Mistakes, Probe, Protocol
from mha_lesson.exercises.engine.compare import NotPlain, plain
from mha_lesson.exercises.engine.probes import usual_forms, wave
from mha_lesson.steps.inspection import find_head
from mha_lesson.steps.softmax import softmax


def _find_probes() -> list[Probe]:
    small = np.full((2, 3, 5, 7), 0.1)
    small[1, 2, 4, 0], small[0, 1, 4, 3], small[0, 0, 0, 4], small[1, 0, 2, 6] = 0.4, 0.3, 0.35, 0.5
    return [
        Probe((small, 4, 0), "2 layers, 3 heads; 0.4 from word 4 to word 0 in layer 1, head 2"),
        Probe((softmax(wave(5, 3, 2, 7, step=2.3, size=2)), 1, 0), "5 layers, 3 heads, 2 queries, 7 keys"),
        Probe((softmax(wave(3, 5, 7, 2, step=1.7, size=3)), 1, 0), "3 layers, 5 heads, 7 queries, 2 keys"),
        Probe((softmax(wave(2, 7, 5, 3, step=2.9, size=2)), 2, 1), "2 layers, 7 heads, 5 queries, 3 keys"),
        Probe((softmax(wave(7, 2, 3, 5, step=1.3, size=2, dtype=np.float32)), 0, 2), "7 layers, 2 heads, float32"),
    ]


def _best(links):
    return tuple(int(i) for i in np.unravel_index(np.argmax(links), links.shape))


def _best_by_loop(weights, query, key):
    best, place = -1.0, None
    for layer, heads in enumerate(weights):
        for head, rows in enumerate(heads):
            if rows[query][key] > best:
                best, place = rows[query][key], (layer, head)
    return place


def _read_place(arguments: tuple, answer: Any) -> Any:
    """The answer as it is, if it is made of numbers."""
    try:
        if not isinstance(plain(answer), dict):
            return answer
    except NotPlain:
        pass
    kind = type(answer).__name__
    raise ValueError(f"expected two numbers, (layer, head), got {'an' if kind[0] in 'aeiou' else 'a'} {kind}")


mistake = Mistakes()


mistake.edit(
    "query_and_key_swapped",
    """Layer and head are looked for in the right way. But you looked at the weight from key to query: rows are queries,
    columns are keys, [..., query, key].""",
    old="query, key]",
    new="key, query]",
)

mistake.edit(
    "order",
    """The right head is found. But the order is (layer, head).""",
    old="return int(layer), int(head)",
    new="return int(head), int(layer)",
)


@mistake
def flat_index(weights, query, key):
    """The largest weight is found. But np.argmax counts through all heads of all layers; np.unravel_index(number,
    (layers, heads)) makes (layer, head) of it."""
    return int(np.argmax(weights[:, :, query, key]))


@mistake
def unravelled_by_layers(weights, query, key):
    """The largest weight is found. But its number is divided by the number of layers; in one layer there are H heads:
    divmod(number, H)."""
    return divmod(int(np.argmax(weights[:, :, query, key])), len(weights))


@mistake
def twelve_heads(weights, query, key):
    """The largest weight is found. But // 12 and % 12 are right for the lesson's model alone; in one layer there are H
    = weights.shape[1] heads: divmod(number, H)."""
    return divmod(int(np.argmax(weights[:, :, query, key])), 12)


@mistake
def best_head_of_each_layer(weights, query, key):
    """The best head of each layer is right. But one head of all layers is asked for: which of these has the largest
    weight? np.argmax without an axis looks through the whole table."""
    return weights[:, :, query, key].argmax(axis=1)


@mistake
def a_pair_for_each_layer(weights, query, key):
    """The best head of each layer is right. But one pair (layer, head) is asked for, that with the largest weight of
    all."""
    return np.array(list(enumerate(weights[:, :, query, key].argmax(axis=1))))


@mistake
def heads_averaged_first(weights, query, key):
    """The weight from query to key is the right one. But you chose the layer by the mean over its heads, and the mean
    hides the one head that matters."""
    return (lambda links: (int(links.mean(1).argmax()), int(links[links.mean(1).argmax()].argmax())))(
        weights[:, :, query, key]
    )


@mistake
def layers_averaged_first(weights, query, key):
    """The weight from query to key is the right one. But you chose the head by its mean over the layers; head 3 of one
    layer has nothing to do with head 3 of the next. Look for the largest of all."""
    return (lambda links: (int(links[:, links.mean(0).argmax()].argmax()), int(links.mean(0).argmax())))(
        weights[:, :, query, key]
    )


@mistake
def each_axis_alone(weights, query, key):
    """The weight from query to key is the right one. But layer and head are chosen apart, each by its mean; they must
    be those of one and the same weight."""
    return (lambda links: (int(links.mean(1).argmax()), int(links.mean(0).argmax())))(weights[:, :, query, key])


mistake.edit(
    "any_words",
    """Layer and head come from one weight, good. But it is the largest of all weights; only the one from query to key
    counts.""",
    old="weights[:, :, query, key]",
    new="weights.max(axis=(2, 3))",
)

mistake.edit(
    "any_key",
    """The row of the query is right. But you took its largest weight, to whatever key; only the one to `key`
    counts.""",
    old="weights[:, :, query, key]",
    new="weights[:, :, query].max(axis=-1)",
)

mistake.edit(
    "any_query",
    """The column of the key is right. But you took its largest weight, from whatever query; only the one from `query`
    counts.""",
    old="weights[:, :, query, key]",
    new="weights[:, :, :, key].max(axis=-1)",
)

mistake.edit(
    "queries_averaged",
    """The column of the key is right. But you took the mean over all queries; only the weight from `query` counts.""",
    old="weights[:, :, query, key]",
    new="weights[:, :, :, key].mean(axis=-1)",
)


@mistake
def both_ways(weights, query, key):
    """The weight from query to key is in it. But you added the one from key to query; a head looks one way."""
    return _best(weights[:, :, query, key] + weights[:, :, key, query])


mistake.edit(
    "smallest",
    """The weight from query to key is the right one. But you found its smallest; np.argmax finds the largest.""",
    old="np.argmax",
    new="np.argmin",
)


@mistake
def last_layer(weights, query, key):
    """The right head of the last layer. But the others count too: look through all layers."""
    return (len(weights) - 1, int(weights[-1, :, query, key].argmax()))


@mistake
def first_layer(weights, query, key):
    """The right head of the first layer. But the others count too: look through all layers."""
    return (0, int(weights[0, :, query, key].argmax()))


mistake.edit(
    "counted_from_one",
    """The right head is found. But you count from 1; layers and heads are numbered from 0.""",
    old="return int(layer), int(head)",
    new="return int(layer) + 1, int(head) + 1",
)


@mistake
def the_weight_itself(weights, query, key):
    """That is how large the weight is. But asked for is where it stands: (layer, head), with np.argmax."""
    return weights[:, :, query, key].max()


FIND = Exercise(
    id="09.find",
    signature="find(weights, query, key)",
    solution=find_head,
    protocol=Protocol(read=_read_place),
    probes=_find_probes,
    mistakes=mistake.all,
    forms={
        "a loop": _best_by_loop,
        "divmod": lambda weights, query, key: divmod(
            int(weights[..., query, key].ravel().argmax()), weights.shape[1]
        ),
        "argwhere": lambda weights, query, key: np.argwhere(
            weights[..., query, key] == weights[..., query, key].max()
        )[0],
        "a sorted list": lambda weights, query, key: max(
            (w, (i, j)) for i, row in enumerate(weights[:, :, query, key].tolist()) for j, w in enumerate(row)
        )[1],
        **usual_forms(find_head),
    },
    hints=(
        "One number for each head of each layer: the weight from query to key.",
        "links = weights[:, :, query, key] has shape (layers, H).",
        "np.argmax(links) counts through the whole table; np.unravel_index(that, links.shape) gives row and column.",
    ),
    well_done="Found in one sentence; whether it does the same in others is the next question.",
)  # fmt: skip
