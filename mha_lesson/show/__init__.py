"""Pictures and numbers for the lessons.

`from mha_lesson import show` costs next to nothing: matplotlib and ipywidgets
load when something that needs them is used for the first time.

    show.heatmap(weights, rows=tokens)     a matplotlib Figure
    show.figure(fig, alt="...")            shows a Figure in a notebook
    show.WordScores(tokens, scores)        something to click on
"""

from importlib import import_module

_SUBMODULES = ("figures", "numbers", "widgets")

_HOME = {
    **dict.fromkeys(
        (
            "heatmap",
            "head_grid",
            "lines",
            "bars",
            "course_map",
            "position_bands",
            "similarity_map",
            "head_tensor",
            "figure",
            "show_map",
            "spread",
            "summary",
            "tradeoff",
        ),
        "figures.plots",
    ),
    **dict.fromkeys(
        (
            "cost_lines",
            "cost_text",
            "head_split_picture",
            "recall_lines",
            "recall_text",
            "ring_picture",
            "roofline",
            "roofline_text",
            "slope_of",
        ),
        "figures.cost",
    ),
    **dict.fromkeys(
        (
            "PositionSlider",
            "WordScores",
            "ScaleSlider",
            "MaskPainter",
            "SoftmaxExplorer",
            "TensorSlicer",
            "HeadViewer",
            "KVCacheCalculator",
            "TileStepper",
        ),
        "widgets",
    ),
}

__all__ = [*_SUBMODULES, *_HOME]


def __getattr__(name):
    """Load a submodule, or a name out of one, when it is first asked for."""
    if name in _SUBMODULES:
        return import_module(f"{__name__}.{name}")
    if name in _HOME:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return sorted(set(globals()) | set(__all__))
