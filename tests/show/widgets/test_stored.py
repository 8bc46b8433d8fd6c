"""The calculator and the stepper in a stored notebook."""

import numpy as np
import pytest

from mha_lesson import show
from mha_lesson.steps.serving import PUBLISHED
from tests.show.helpers_cost import N


@pytest.mark.parametrize(
    "kind, arguments", [("KVCacheCalculator", [PUBLISHED[:3]]), ("TileStepper", [np.eye(3), N[:3]])]
)
def test_stored_output_is_a_picture_with_words(kind, arguments):
    widget, again = (getattr(show, kind)(*arguments) for _ in range(2))
    data, metadata = widget._repr_mimebundle_()
    assert data["image/png"][:4] == b"\x89PNG" and data["text/plain"] == repr(again)
    assert len(metadata["image/png"]["alt"]) > 40
    assert 'role="status"' in widget.output.value


def test_an_error_in_a_callback_is_shown():
    widget = show.TileStepper(np.eye(3), np.ones(3))
    widget.steps = []
    widget.controls["tile"].value = 2
    assert "This could not be drawn" in widget.output.value and "IndexError" in widget.output.value
