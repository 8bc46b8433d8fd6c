"""The right and the wrong layers of lesson 08."""

import pytest

from mha_lesson.exercises.lesson_08.works import RIGHT, WRONG

torch = pytest.importorskip("torch")

from mha_lesson.exercises.lesson_08 import broken_layers  # noqa: E402
from mha_lesson.pytorch import layer_checks  # noqa: E402
from tests.exercises.lesson_08.helpers import failed  # noqa: E402

pytestmark = pytest.mark.torch


def test_the_layers_are_those_of_the_table():
    assert list(broken_layers.right_layers()) == list(RIGHT) and len(RIGHT) == 6
    assert list(broken_layers.wrong_layers()) == list(WRONG) and len(WRONG) == 10
    assert all(layer.fault == "" for layer in broken_layers.right_layers().values())


def test_a_wrong_layer_is_a_right_one_with_one_method_changed():
    assert failed(broken_layers.StepByStep(8, 2)) == set()
    for layer in broken_layers.wrong_layers().values():
        changed = [name for name, value in vars(type(layer)).items() if callable(value)]
        assert len(changed) == 1 and type(layer).__bases__ == (broken_layers.StepByStep,)


def test_right_layers_hide_nan_in_padding():
    for layer in broken_layers.right_layers().values():
        query, key, value = layer_checks.inputs(layer)
        keep = (torch.arange(7) < 4)[None, None, None].expand(3, 1, 1, 7)
        want = layer.eval()(query, key, value, keep)
        have = layer(query, key.masked_fill(~keep[:, 0, 0, :, None], torch.nan), value, keep)
        assert layer_checks.close(want, have)
