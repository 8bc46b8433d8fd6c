"""Mistakes by their names, two at once too."""

from mha_lesson.exercises import REGISTRY, check


def test_a_pair_is_named_when_it_alone_explains_everything():
    e = REGISTRY["03.scores"]
    by_name = {m.name: m for m in e.mistakes}
    both = e.variant(by_name["no_scale"], by_name["transposed"])
    result = check("03.scores", both)
    assert result.mistake == "no_scale+transposed"
    assert result.message == (
        "Two things at once explain every probe.\n"
        "1. The dot products are not divided by sqrt(d): their spread grows with d and softmax saturates.\n"
        "2. Rows must belong to queries and columns to keys: q @ k^T. You have the transpose."
    )
