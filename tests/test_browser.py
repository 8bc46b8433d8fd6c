"""A lesson in a real JupyterLab and a real browser, as a learner uses it."""

import json

import pytest

from mha_lesson.course import learner, paths
from mha_lesson.exercises import REGISTRY
from tests import browser_lab

LESSON = "05_softmax.ipynb"
HEADS = "09_real_heads.ipynb"
SERVING, LONG, GPU = "11_serving_kv_cache_gqa.ipynb", "12_long_context.ipynb", "13_gpu.ipynb"
KERNEL = """        s = tl.where(keys[None, :] < N, tl.dot(q, tl.trans(k)) * scale, float("-inf"))
        new = tl.maximum(m, tl.max(s, 1))
        p, shrink = tl.exp(s - new[:, None]), tl.exp(m - new)
        l, acc, m = l * shrink + tl.sum(p, 1), acc * shrink[:, None] + tl.dot(p, v), new
"""
WRONG_AXIS = """def softmax(z):
    e = np.exp(z - z.max(axis=0))
    return e / e.sum(axis=0)


check("05.softmax", softmax)"""
HAS_PICTURE = "cell => cell.querySelector('.jp-OutputArea-output img')?.naturalWidth > 100"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def open_lesson(tmp_path_factory):
    """open_lesson(file): that lesson, open in JupyterLab and not yet run."""
    browser_lab.require()
    folder = tmp_path_factory.mktemp("lab")
    with browser_lab.lab(folder) as address, browser_lab.chromium() as browser:

        def opened(file):
            lesson = learner.given_out(paths.NOTEBOOKS / file)  # without what a learner has solved in it
            (folder / file).write_text(json.dumps(lesson), encoding="utf-8")
            return browser_lab.Notebook(browser, address, file)

        yield opened


def test_a_lesson_works_in_the_browser(open_lesson):
    lesson = open_lesson(LESSON)
    picture_before_the_first_run(lesson)
    everything_runs(lesson)
    the_widget_moves(lesson)
    a_wrong_answer_is_named(lesson)
    assert not lesson.outside, "the lesson asked other machines for something"
    assert not lesson.complaints


def test_the_head_viewer_draws_and_follows_the_keyboard(open_lesson):
    """The browser draws this one by itself (head_viewer.js), so only a browser can tell."""
    lesson = open_lesson(HEADS)
    index = lesson.find("show.HeadViewer")
    for i, cell in enumerate(lesson.cells()[: index + 1]):
        if cell["type"] == "code":
            lesson.run(i, cell["source"])
    viewer = lesson.on_screen(index)
    sentence = viewer.get_by_role("status")
    sentence.get_by_text("Layer 5, head 5: she looks most at maya").wait_for()
    viewer.get_by_role("gridcell", name="Layer 0, head 2", exact=True).click()
    sentence.get_by_text("Layer 0, head 2: she").wait_for()
    viewer.page.keyboard.press("ArrowDown")
    sentence.get_by_text("Layer 1, head 2: she").wait_for()
    viewer.get_by_role("option", name="she", exact=True).press("ArrowDown")
    sentence.get_by_text("Layer 1, head 2: left").wait_for()
    assert not lesson.outside
    assert not lesson.complaints


def test_the_cache_of_a_model_is_counted_again(open_lesson):
    lesson = open_lesson(SERVING)
    run_cells(lesson, "import mha_lesson.pytorch", "import PUBLISHED", "show.KVCacheCalculator")
    calculator = lesson.on_screen(lesson.find("show.KVCacheCalculator"))
    sentence = calculator.get_by_role("status")
    sentence.get_by_text("1 text of 4,096 tokens, 2 bytes a number: 2 GiB").wait_for()
    calculator.get_by_role("combobox").first.select_option("Llama 2 70B")
    sentence.get_by_text("Llama 2 70B").wait_for()
    calculator.locator(".noUi-handle").nth(1).press("ArrowRight")
    sentence.get_by_text("2 texts of 4,096 tokens").wait_for()
    assert not lesson.outside
    assert not lesson.complaints


def test_the_tiles_go_on_and_back(open_lesson):
    lesson = open_lesson(LONG)
    run_cells(lesson, "import mha_lesson.pytorch", "import tiled_attention", "show.TileStepper")
    stepper = lesson.on_screen(lesson.find("show.TileStepper"))
    sentence = stepper.get_by_role("status")
    sentence.get_by_text("Tile 1 of 6: queries 0 and 1 meet keys 0 and 1.").wait_for()
    stepper.get_by_role("button", name="next").click()
    sentence.get_by_text("Tile 2 of 6: queries 2 and 3 meet keys 0 and 1.").wait_for()
    stepper.get_by_role("button", name="back").click()
    stepper.get_by_role("button", name="back").click()  # the end stays
    sentence.get_by_text("Tile 1 of 6").wait_for()
    stepper.locator(".noUi-handle").press("End")
    sentence.get_by_text("Tile 6 of 6").wait_for()
    assert not lesson.outside
    assert not lesson.complaints


def test_a_kernel_is_written_in_the_browser(open_lesson):
    lesson = open_lesson(GPU)
    run_cells(lesson, "import mha_lesson.pytorch", "import tl\n")
    index = lesson.find('check("13.kernel"')
    stub = lesson.cells()[index]["source"]
    answer = stub.replace("        raise NotImplementedError\n", KERNEL)
    assert answer != stub
    lesson.run(index, answer)
    lesson.on_screen(index).get_by_text("13.kernel: correct").wait_for()
    lesson.run(index, answer.replace("keys[None, :] < N", "keys[None, :] <= N"))
    lesson.on_screen(index).get_by_text("key N does not exist").wait_for()
    assert not lesson.complaints


def run_cells(lesson, *words):
    """The cells that hold these words, in this order."""
    for text in words:
        index = lesson.find(text)
        lesson.run(index, lesson.cells()[index]["source"])


def picture_before_the_first_run(lesson):
    """Nothing has run and nobody trusted the file: the widget's place shows its picture."""
    cell = lesson.on_screen(lesson.find("show.SoftmaxExplorer"))
    lesson.page.wait_for_function(HAS_PICTURE, arg=cell.element_handle())


def everything_runs(lesson):
    lesson.run_all()
    code = [cell for cell in lesson.cells() if cell["type"] == "code"]
    assert [cell["count"] for cell in code] == list(range(1, len(code) + 1))
    errors = [output for cell in code for output in cell["outputs"] if output["output_type"] == "error"]
    assert not errors


def the_widget_moves(lesson):
    """By mouse and by keyboard: the sentence under the bars says what was chosen."""
    cell = lesson.on_screen(lesson.find("show.SoftmaxExplorer"))
    sentence = cell.get_by_role("status")
    cell.get_by_role("checkbox").click()
    sentence.get_by_text("maximum subtracted").wait_for()
    cell.locator(".noUi-handle").first.press("ArrowLeft")
    sentence.get_by_text("Temperature 0.79").wait_for()


def a_wrong_answer_is_named(lesson):
    index = lesson.find('check("05.softmax"')
    shown = lesson.run(index, WRONG_AXIS)
    assert [output["output_type"] for output in shown] == ["execute_result"]
    mistake = next(known for known in REGISTRY["05.softmax"].mistakes if known.name == "over_queries")
    assert mistake.say in " ".join(shown[0]["data"]["text/plain"].split())
    lesson.on_screen(index).get_by_text("05.softmax: incorrect").wait_for()


@pytest.mark.parametrize(
    ("named", "result"), [(None, pytest.skip.Exception), ("/nowhere/browser", pytest.fail.Exception)]
)
def test_a_browser_that_was_asked_for_is_no_skip(monkeypatch, named, result):
    monkeypatch.setattr(browser_lab, "BROWSERS", ())
    monkeypatch.delenv("MHA_LESSON_BROWSER", raising=False)
    if named:
        monkeypatch.setenv("MHA_LESSON_BROWSER", named)
    with pytest.raises(result, match=r"playwright is not installed|no browser at|no Chromium"):
        browser_lab.require()
