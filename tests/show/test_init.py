"""`mha_lesson.show` loads what is asked for, and nothing heavy."""

import subprocess
import sys

import pytest

from mha_lesson.course.paths import ROOT
from mha_lesson.show import widgets
from mha_lesson.show.figures import plots


def run_python(code):
    """Run code in a fresh interpreter; its output."""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


# ---------------------------------------------------------------- importing


def test_importing_show_loads_nothing_heavy():
    seen = run_python(
        "import sys, mha_lesson.show as show; heavy = ('matplotlib', 'ipywidgets')\n"
        "print(*[name in sys.modules for name in heavy])\n"
        "show.heatmap; print(*[name in sys.modules for name in heavy])\n"
        "print('matplotlib.pyplot' in sys.modules)"
    )
    assert seen == ["False", "False", "True", "False", "False"]


def test_widgets_draw_without_matplotlib():
    """A callback that made a figure would be a hundred times slower."""
    seen = run_python(
        "import sys; from mha_lesson.show import widgets as w; s = w.SoftmaxExplorer()\n"
        "s.controls['shift'].value = 100; print('matplotlib' in sys.modules)"
    )
    assert seen == ["False"]


def test_lazy_names_and_unknown_ones():
    import mha_lesson.show as show

    assert show.heatmap is plots.heatmap
    assert show.MaskPainter is widgets.MaskPainter
    assert {"heatmap", "widgets", "TensorSlicer"} <= set(dir(show))
    with pytest.raises(AttributeError, match="no_such"):
        show.no_such  # noqa: B018
