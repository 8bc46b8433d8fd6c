"""Things to move and click in a notebook. Each shows a fixed picture where widgets don't work.

Put one at the end of a cell to show it:

    WordScores(tokens, scores)

`widget.render(...)` gives the HTML that a state of the controls leads to.
"""

from mha_lesson.show.widgets.base import LessonWidget, shows_errors
from mha_lesson.show.widgets.cache import KVCacheCalculator
from mha_lesson.show.widgets.head_viewer import HeadViewer
from mha_lesson.show.widgets.masks import MaskPainter
from mha_lesson.show.widgets.scores import ScaleSlider, SoftmaxExplorer
from mha_lesson.show.widgets.tiles import TileStepper
from mha_lesson.show.widgets.words import PositionSlider, TensorSlicer, WordScores

__all__ = [
    "HeadViewer",
    "KVCacheCalculator",
    "LessonWidget",
    "MaskPainter",
    "PositionSlider",
    "ScaleSlider",
    "SoftmaxExplorer",
    "TensorSlicer",
    "TileStepper",
    "WordScores",
    "shows_errors",
]
