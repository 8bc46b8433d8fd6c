"""10.sweep: a dictionary is as good as a table."""

from mha_lesson.exercises import REGISTRY, adopt, check
from tests.reference import near


def test_the_sweep_may_be_a_dictionary_and_comes_back_as_the_table():
    form = REGISTRY["10.sweep"].forms["a dictionary"]
    table = adopt("10.sweep", form)(lambda heads, seed: float(heads * seed), [2, 1], seeds=[1, 3])
    near(table, [[1, 2, 1, 3], [2, 4, 2, 6]])
    assert "got a value of type str" in check("10.sweep", lambda train, head_counts, seeds: "best").message
