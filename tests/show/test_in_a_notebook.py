"""Figures and widgets in a real notebook: stored, compared, and a change noticed."""

import os
import subprocess
import sys

import pytest

from mha_lesson.course.paths import ROOT
from tests.show.helpers import VIEW

CELLS = [
    "import numpy as np\nfrom mha_lesson import show\n"
    "tokens = ['Maya', 'placed', 'the', 'book']\n"
    "scores = np.arange(16.0).reshape(4, 4) % 5\n"
    "weights = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)",
    "show.PositionSlider(scores, tokens)",
    "show.WordScores(tokens, scores, weights)",
    "show.ScaleSlider()",
    "show.MaskPainter(tokens, attend=lambda keep: keep / keep.sum(-1, keepdims=True))",
    "show.SoftmaxExplorer()",
    "show.TensorSlicer(tokens, 8, 2)",
    "show.show_map(weights, tokens, title='weights', alt='Weights of four words.')",
    "show.figure(show.head_grid(np.stack([weights] * 2), tokens), 'Two heads.')",
    "show.figure(show.lines([1, 2, 4], {'a': [1, 2, 3]}, logx=True), 'A rising line.')",
    "show.figure(show.bars(tokens, scores[0]), 'Four bars.', show.summary(scores[0]))",
    "show.figure(show.course_map((1, 2)), 'The map of the course.')",
    "show.figure(show.position_bands(scores), 'Four positions.')",
    "show.figure(show.similarity_map(scores, tokens), 'Similarities of four words.')",
    "show.figure(show.head_tensor(scores, 2, tokens, reshape_only=True), 'Mixed tokens.')",
]


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """A notebook with every figure and widget, run once: (path, environment, notebook)."""
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS],
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}},
    )
    folder = tmp_path_factory.mktemp("notebook")
    nbclient.NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(folder)}}).execute(
        env=environment
    )
    notebook.metadata.pop("widgets", None)
    path = folder / "all.ipynb"
    nbformat.write(notebook, path)
    return path, environment, notebook


@pytest.mark.slow
def test_every_output_has_picture_text_and_alt(executed):
    for cell in executed[2].cells[1:]:
        (output,) = cell.outputs
        assert output.data["image/png"].startswith("iVBOR")
        assert output.metadata["image/png"]["alt"]
        assert output.data["text/plain"].strip()
        assert ("Figure" in output.data["text/plain"]) is False


def run_nbval(notebook, folder, environment):
    """The strict comparison of stored and new outputs, as maintainers run it."""
    import nbformat

    nbformat.write(notebook, folder / "copy.ipynb")
    options = ["--nbval", "--nbval-current-env", "-q", "-p", "no:cacheprovider", "--rootdir", str(folder)]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(folder / "copy.ipynb")],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_strict_nbval_passes_with_and_without_the_stored_widget_view(executed, tmp_path):
    pytest.importorskip("nbval")
    import nbformat

    path, environment, _ = executed
    notebook = nbformat.read(path, 4)
    # Every second output loses its link to a live widget, as in notebooks stored clean.
    for cell in notebook.cells[::2]:
        for output in cell.outputs:
            output.data.pop(VIEW, None)
    done = run_nbval(notebook, tmp_path, environment)
    assert done.returncode == 0, done.stdout[-3000:]
    assert f"{len(CELLS)} passed" in done.stdout


@pytest.mark.slow
def test_nbval_notices_when_a_number_behind_a_picture_changes(executed, tmp_path):
    pytest.importorskip("nbval")
    import nbformat

    path, environment, _ = executed
    notebook = nbformat.read(path, 4)
    # The stored outputs stay, the weights change: the sum runs over the wrong axis.
    notebook.cells[0].source = CELLS[0].replace("sum(1,", "sum(0,")
    notebook.cells = [cell for cell in notebook.cells if cell.source in (notebook.cells[0].source, CELLS[2], CELLS[7])]
    done = run_nbval(notebook, tmp_path, environment)
    assert "2 failed, 1 passed" in done.stdout, done.stdout[-3000:]
