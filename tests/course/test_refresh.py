"""`refresh`: run again, store clean, never lose anything."""

import os

import nbformat
import pytest
from nbformat import v4

from mha_lesson.course import clean, refresh
from mha_lesson.course.errors import CourseError
from tests.course.helpers import lesson, printed

RANDOM_PICTURE = """\
import os
from IPython.display import display
data = {"image/png": os.urandom(30), "text/plain": "noise"}
display(data, raw=True, metadata={"image/png": {"alt": "noise"}})"""


@pytest.fixture(scope="module")
def refreshed(tmp_path_factory):
    """A notebook run for real, twice."""
    file = tmp_path_factory.mktemp("refresh") / "03_scaling.ipynb"
    source = (
        "import os, mha_lesson\nprint(os.environ['OMP_NUM_THREADS'])\nprint(hash('a'), flush=True)\nmha_lesson.__name__"
    )
    nbformat.write(lesson(source, RANDOM_PICTURE), file)
    first = refresh.refresh(file)
    stored = file.read_bytes()
    os.utime(file, (1, 1))
    return file, first, stored, refresh.refresh(file)


def test_refresh_stores_clean_outputs(refreshed):
    file, first, stored, _ = refreshed
    assert first == ("changed", "")
    nb = nbformat.read(file, as_version=4)
    assert [cell.execution_count for cell in nb.cells] == [1, 2]
    assert [output.output_type for output in nb.cells[0].outputs] == ["stream", "execute_result"]
    assert nb.cells[0].outputs[0].text.startswith("1\n")
    assert nb.cells[0].outputs[1].data["text/plain"] == "'mha_lesson'"
    assert all(cell.metadata == {} for cell in nb.cells)
    assert stored.endswith(b"}\n") and b"\r" not in stored


def test_refresh_writes_nothing_for_noise(refreshed):
    file, _, stored, second = refreshed
    assert second == ("unchanged", ""), "hash('a') and the picture's bytes differ unless they are fixed and kept"
    assert file.read_bytes() == stored
    assert file.stat().st_mtime == 1


def test_refresh_leaves_a_notebook_that_fails(tmp_path, capsys):
    file = tmp_path / "04_masking.ipynb"
    nbformat.write(lesson("x = 1", "x / 0"), file)
    before = file.read_bytes()
    assert refresh.refresh_and_say(file, check=False, pictures=False) == "failed"
    said = capsys.readouterr().out
    assert "cell 2 fails" in said and "| x / 0" in said and "ZeroDivisionError: division by zero" in said
    assert file.read_bytes() == before


@pytest.fixture
def pretend(tmp_path, monkeypatch):
    """`refresh` of a stored notebook whose run gives these outputs, without a kernel."""

    def run(outputs, meanwhile=lambda file: None, **options):
        file = tmp_path / "05_softmax.ipynb"
        nb = lesson("print(1)")
        nb.cells[0].update(execution_count=1, outputs=[v4.new_output("stream", name="stdout", text="1\n")])
        nbformat.write(clean.cleaned(nb), file)
        before = file.read_bytes()

        def execute(client, **kwargs):
            client.nb.cells[0].update(execution_count=1, outputs=outputs)
            meanwhile(file)

        monkeypatch.setattr(refresh.NotebookClient, "execute", execute)
        state, detail = refresh.refresh(file, **options)
        return state, detail, file.read_bytes() != before

    return run


def test_refresh_tells_what_would_change(pretend):
    assert pretend([printed("1\n")], check=True) == ("unchanged", "", False)
    assert pretend([printed("2\n")], check=True) == ("would change", "", False)
    assert pretend([printed("2\n")]) == ("changed", "", True)


def test_refresh_reports_stderr(pretend):
    state, detail, written = pretend([printed("1\n"), printed("DeprecationWarning: old\n", "stderr")])
    assert (state, written) == ("failed", False)
    assert "cell 1 writes to stderr: DeprecationWarning: old" in detail


def test_refresh_never_overwrites_what_was_saved_meanwhile(pretend):
    state, detail, _ = pretend([printed("2\n")], meanwhile=lambda file: file.write_text("my work"))
    assert state == "failed" and "nothing was written" in detail


def test_refresh_finds_notebooks_by_name(folder, tmp_path, monkeypatch):
    for stem in ("00_start_here", "03_scaling", "10_applications"):
        nbformat.write(lesson("x"), folder / "notebooks" / f"{stem}.ipynb")
    stems = lambda *names: [file.stem for file in refresh.find(names)]  # noqa: E731
    assert stems() == ["00_start_here", "03_scaling", "10_applications"]
    assert stems("03") == stems("03_scaling") == stems("03_scaling.ipynb") == ["03_scaling"]
    assert stems(str(folder / "notebooks" / "10_applications.ipynb"), "10") == ["10_applications"]
    with pytest.raises(CourseError, match=r"got '3x'.*choose from: 00_start_here, 03_scaling"):
        stems("3x")


@pytest.mark.parametrize(
    ("states", "check", "code"),
    [
        (["changed", "unchanged"], False, 0),
        (["changed", "failed"], False, 1),
        (["unchanged", "unchanged"], True, 0),
        (["would change", "unchanged"], True, 1),
    ],
)
def test_the_exit_code_of_refresh(folder, monkeypatch, states, check, code):
    for n in range(2):
        nbformat.write(lesson("x"), folder / "notebooks" / f"0{n}_x.ipynb")
    answers = iter(states)
    monkeypatch.setattr(refresh, "refresh_and_say", lambda *a: next(answers))
    assert refresh.run([], check=check) == code
