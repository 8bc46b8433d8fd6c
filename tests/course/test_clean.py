"""Cleaning a notebook: the lesson stays, the noise goes."""

from nbformat import v4

from mha_lesson.course import clean
from tests.course.helpers import lesson


def image(png, text="3x3, max 0.8", alt="a map"):
    return v4.new_output("display_data", {"image/png": png, "text/plain": text}, metadata={"image/png": {"alt": alt}})


def test_cleaning_keeps_the_lesson_and_drops_the_noise():
    nb = lesson("a", "b")
    nb.metadata.update(widgets={"state": {}}, language_info={"name": "python", "version": "3.12.1"}, vscode={"x": 1})
    nb.cells[0].metadata.update(execution={"iopub.status.busy": "now"}, tags=["keep"], collapsed=True)
    nb.cells[0].outputs = [v4.new_output("stream", name="stdout", text=text) for text in ("a\n", "b\n")]
    nb.cells[0].outputs += [image("AA=="), v4.new_output("stream", name="stdout", text="c")]
    kept = clean.cleaned(nb)
    assert set(kept.metadata) == {"mha_lesson", "language_info", "kernelspec"}
    assert "version" not in kept.metadata.language_info
    assert kept.cells[0].metadata == {"tags": ["keep"]}
    assert [output.get("text") for output in kept.cells[0].outputs] == ["a\nb\n", None, "c"]
    assert [cell.id for cell in kept.cells] == ["c0", "c1"]
    assert nb.metadata.widgets, "the given notebook is left as it is"


def test_stdout_and_stderr_are_not_mixed():
    both = [v4.new_output("stream", name=name, text=name) for name in ("stdout", "stderr", "stdout")]
    assert [output.name for output in clean.merge_streams(both)] == ["stdout", "stderr", "stdout"]


def test_counts_start_at_one():
    nb = lesson("a", "  ", "b")
    nb.cells[2].outputs = [v4.new_output("execute_result", {"text/plain": "1"}, execution_count=9)]
    clean.number_counts(nb)
    assert [cell.execution_count for cell in nb.cells] == [1, None, 2]
    assert nb.cells[2].outputs[0].execution_count == 2


def test_a_picture_is_kept_if_what_it_shows_is_the_same():
    old, new = lesson("a", "b", "c", "d"), lesson("a", "b", "c", "d")
    old.cells[0].outputs = [image("OLD0"), image("OLD1", "first")]
    new.cells[0].outputs = [image("NEW0", alt="a better text"), image("NEW1", "second")]
    old.cells[1].outputs = [image("OLD2", "<Figure size 640x480 with 1 Axes>")]
    new.cells[1].outputs = [image("NEW2", "<Figure size 640x480 with 1 Axes>")]
    old.cells[2].outputs = []
    new.cells[2].outputs = [image("NEW3")]
    old.cells[3].outputs, old.cells[3].id = [image("OLD4")], "gone"
    new.cells[3].outputs = [image("NEW4")]
    clean.keep_pictures(new, old)
    stored = [output.data["image/png"] for cell in new.cells for output in cell.outputs]
    assert stored == ["OLD0", "NEW1", "NEW2", "NEW3", "NEW4"]
    assert new.cells[0].outputs[0].metadata["image/png"]["alt"] == "a better text"


def test_an_output_that_is_not_compared_is_kept_as_long_as_its_code_is_the_same():
    def printed(text):
        return [v4.new_output("stream", name="stdout", text=text)]

    ignored = "# NBVAL_IGNORE_OUTPUT\n"
    sources = (ignored + "time()", ignored + "time(1)", "time()", ignored + "t()")
    old, new = lesson(*sources), lesson(*sources)
    new.cells[1].source += "  # changed"
    for cell in old.cells[:3]:
        cell.outputs = printed("old")
    for cell in new.cells:
        cell.outputs = printed("new")
    clean.keep_uncompared(new, old)
    assert [cell.outputs[0].text for cell in new.cells] == ["old", "new", "new", "new"]
