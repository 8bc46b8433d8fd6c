"""Numbers in HTML."""

from mha_lesson.show import markup


def test_numbers_are_never_minus_zero():
    assert markup.number(-1e-9) == "0.000"
    assert markup.number(-1.5, 1) == "−1.5"
    assert markup.number(float("nan")) == "nan"
