"""The map of the course and the picture of heads."""

import re

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from mha_lesson.show.figures import plots
from tests.show.helpers import tick_names, written


def test_course_map_names_all_lessons_and_ticks_the_finished_ones():
    texts = written(plots.course_map().axes[0])
    assert {f"{n:02d}" for n in range(1, 14)} <= set(texts)
    assert any("softmax" in text for text in texts)
    assert not any("✓" in text for text in texts)
    ticked = [t for t in written(plots.course_map((1, "06")).axes[0]) if re.match(r"✓ \d", t)]
    assert set(ticked) == {"✓ 01", "✓ 06"}


def test_course_map_texts_stay_inside_their_boxes():
    fig = plots.course_map(range(14))
    renderer = FigureCanvasAgg(fig).get_renderer()
    axes = fig.axes[0]
    boxes = [patch.get_window_extent(renderer) for patch in axes.patches]
    for text in axes.texts:
        place = text.get_window_extent(renderer)
        middle = ((place.x0 + place.x1) / 2, (place.y0 + place.y1) / 2)
        around = [box for box in boxes if box.contains(*middle)]
        assert all(box.x0 < place.x0 and place.x1 < box.x1 for box in around), text.get_text()


def test_head_tensor_split_and_plain_reshape():
    x = np.zeros((3, 4))
    top, bottom = plots.head_tensor(x, 2, ["a", "b", "c"]).axes
    assert written(top) == [f"t{t}·f{f}" for t in range(3) for f in range(4)]
    assert written(bottom)[:6] == ["t0·f0", "t0·f1", "t1·f0", "t1·f1", "t2·f0", "t2·f1"]
    assert tick_names(bottom.yaxis) == ["a", "b", "c"]
    wrong = plots.head_tensor(x, 2, reshape_only=True).axes[1]
    assert written(wrong)[:6] == ["t0·f0", "t0·f1", "t0·f2", "t0·f3", "t1·f0", "t1·f1"]
    assert "mixed" in wrong.get_title()


@pytest.mark.parametrize(
    ("shape", "heads", "labels", "says"),
    [((2, 3, 4), 2, None, "x\\[0\\]"), ((3, 4), 3, None, "evenly"), ((3, 4), 2, ["a"], "1 labels")],
)
def test_head_tensor_refusals(shape, heads, labels, says):
    with pytest.raises(ValueError, match=says):
        plots.head_tensor(np.zeros(shape), heads, labels)
