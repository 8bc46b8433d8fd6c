"""Things to move and click in a notebook. Each shows a fixed picture where widgets don't work.

Put one at the end of a cell to show it:

    WordScores(tokens, scores)

`widget.render(...)` gives the HTML that a state of the controls leads to.
"""

from .head_viewer import HeadViewer
from .widget_base import LessonWidget, shows_errors
from .widget_cache import KVCacheCalculator
from .widget_masks import MaskPainter
from .widget_scores import ScaleSlider, SoftmaxExplorer
from .widget_tiles import TileStepper
from .widget_words import PositionSlider, TensorSlicer, WordScores

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
