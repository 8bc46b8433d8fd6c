"""The head viewer: what it refuses, what it says, what the browser gets and does with it."""

import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from mha_lesson import show
from mha_lesson.show import widgets
from mha_lesson.show.widgets import head_viewer
from tests import browser_lab

ROOT = Path(__file__).resolve().parents[3]
TOKENS = ["Maya", "placed", "the", "book"]
VIEW = "application/vnd.jupyter.widget-view+json"


def some_weights(layers=2, heads=3, length=4, keys=4):
    """(layers, heads, length, keys), every row another and of sum 1."""
    powers = np.exp(2 * np.random.default_rng(0).normal(size=(layers, heads, length, keys)))
    return powers / powers.sum(-1, keepdims=True)


WEIGHTS = some_weights()
WEIGHTS[1, 2, 3] = [0.53125, 0.25, 0.125, 0.09375]


def viewer(**start):
    return widgets.HeadViewer(WEIGHTS, TOKENS, **start)


@pytest.fixture
def without_anywidget(monkeypatch):
    head_viewer.live_class.cache_clear()
    monkeypatch.setitem(sys.modules, "anywidget", None)
    yield
    head_viewer.live_class.cache_clear()


# ---------------------------------------------------------------- what it says


def test_both_names_lead_to_it():
    assert show.HeadViewer is widgets.HeadViewer is head_viewer.HeadViewer


def test_the_fixed_text():
    widget = viewer(layer=1, head=2, word=3)
    said = "HeadViewer: 2 layers of 3 heads. Layer 1, head 2: book looks most at Maya, 0.531."
    assert widget.text == repr(widget) == said
    assert widget.render(**widget.start) == "Layer 1, head 2: book looks most at Maya, 0.531."
    np.testing.assert_array_equal(widget.row(1, 2, 3), WEIGHTS[1, 2, 3])


def test_one_layer_needs_no_layer_in_its_sentence():
    widget = widgets.HeadViewer(WEIGHTS[1, 2:], TOKENS, word=3)
    assert widget.text == "HeadViewer: 1 head. Head 0: book looks most at Maya, 0.531."
    assert widget.weights.shape == (1, 1, 4, 4)


def test_equal_words_are_told_apart_and_ties_go_to_the_first():
    widget = widgets.HeadViewer(np.full((1, 3, 3), 1 / 3), ["the", "book", "the"], word=2)
    assert widget.text.endswith("the (2) looks most at the (0), 0.333.")


def test_a_row_of_zeros_looks_nowhere():
    widget = widgets.HeadViewer(np.zeros((1, 2, 2)), ["a", "b"])
    assert widget.text.endswith("a looks at no word.")
    widget.png()


def test_cross_attention_names_the_words_looked_at():
    weights = np.array([[[0.2, 0.8, 0.0], [0.1, 0.1, 0.8]]])
    widget = widgets.HeadViewer(weights, ["she", "left"], sources=["elle", "est", "partie"], word=1)
    assert widget.text.endswith("Head 0: left looks most at partie, 0.800.")


@pytest.mark.torch
def test_tensors_without_gradients_are_read():
    import torch

    assert viewer().text == widgets.HeadViewer(torch.from_numpy(WEIGHTS), TOKENS).text
    layers = tuple(torch.from_numpy(WEIGHTS))  # as many libraries give them
    assert viewer().text == widgets.HeadViewer(layers, TOKENS).text


# ---------------------------------------------------------------- what it refuses


@pytest.mark.parametrize(
    ("weights", "says"),
    [
        (None, "need_weights=True"),
        ("words", "can't be read as an array of numbers"),
        (np.ones((2, 4, 4, 4, 4)) / 4, r"5 axes \(2, 4, 4, 4, 4\).*batch axis.*weights\[:, 0\]"),
        (np.ones((4, 4)) / 4, r"2 axes \(4, 4\).*weights\[None\]"),
        (np.ones((0, 4, 4)), "nothing to show"),
        (np.ones((2, 6, 6)) / 6, r"6 words look at 6; but there are 4 tokens.*\[CLS\]"),
        (np.ones((2, 4, 5)) / 5, r"4 words look at 5; .*sources="),
        (np.full((2, 4, 4), np.nan), r"weights\[0, 0\] holds a number that is not finite: nan nan.*softmax"),
        (np.full((2, 4, 4), -0.5), r"a negative number: -0.500.*look like scores"),
        (np.full((2, 4, 4), 0.5), r"whose sum is above 1: 0.500.*eval\(\)"),
        (np.broadcast_to(0.25, (400_000, 1, 4, 4)), "Choose fewer layers"),
    ],
)
def test_weights_that_are_refused(weights, says):
    with pytest.raises((TypeError, ValueError), match=says):
        widgets.HeadViewer(weights, TOKENS)


def test_the_wrong_row_is_named():
    weights = WEIGHTS.copy()
    weights[1, 2, 3, 0] = np.nan
    with pytest.raises(ValueError, match=r"weights\[1, 2, 3\] holds a number that is not finite: nan 0.250"):
        widgets.HeadViewer(weights, TOKENS)


def test_half_precision_is_no_error():
    widgets.HeadViewer(some_weights(length=40, keys=40).astype(np.float16), [str(i) for i in range(40)])


@pytest.mark.torch
def test_a_tensor_that_needs_gradients_is_refused():
    import torch

    tensor = torch.from_numpy(WEIGHTS).requires_grad_()
    for weights in (tensor, list(tensor)):
        with pytest.raises(TypeError, match=r"needs gradients.*detach\(\)"):
            widgets.HeadViewer(weights, TOKENS)


def test_words_that_are_refused():
    with pytest.raises(TypeError, match=r"tokens must be a list of words.*tokens.split\(\)"):
        widgets.HeadViewer(WEIGHTS, "Maya placed the book")
    with pytest.raises(ValueError, match="sources holds 0 words"):
        widgets.HeadViewer(WEIGHTS, TOKENS, sources=[])
    with pytest.raises(ValueError, match="tokens holds 201 words: the viewer shows 1 to 200"):
        widgets.HeadViewer(WEIGHTS, ["a"] * 201)
    with pytest.raises(ValueError, match=r"4 tokens and 2 sources.*swapped"):
        widgets.HeadViewer(some_weights(length=2, keys=4), TOKENS, sources=["a", "b"])


@pytest.mark.parametrize("start", [{"layer": 2}, {"head": -1}, {"word": 4}])
def test_a_start_that_is_not_there(start):
    ((name, value),) = start.items()
    with pytest.raises(ValueError, match=rf"{name} is {value}, but they are counted from 0 to"):
        viewer(**start)


def test_a_start_is_a_place_not_a_word():
    with pytest.raises(TypeError, match=r"word must be a whole number, not 'Maya'"):
        viewer(word="Maya")


# ---------------------------------------------------------------- picture and text


def test_bundle_is_live_pictured_and_fixed():
    pytest.importorskip("anywidget")
    widget = viewer(layer=1, head=2, word=3)
    data, metadata = widget._repr_mimebundle_()
    assert set(data) == {"text/plain", "image/png", VIEW}
    assert data[VIEW]["model_id"] == widget.box.model_id
    assert data["image/png"].startswith(b"\x89PNG")
    alt = metadata["image/png"]["alt"]
    assert "2 times 3 small maps" in alt and "book looks most at Maya, 0.531" in alt
    widget.box.head = 0
    again, _ = widget._repr_mimebundle_()
    assert again["text/plain"] == data["text/plain"] and again["image/png"] == data["image/png"]


def test_without_anywidget_there_is_the_picture(without_anywidget):
    widget = viewer()
    data, metadata = widget._repr_mimebundle_()
    assert set(data) == {"text/plain", "image/png"}
    assert metadata["image/png"]["alt"]
    assert widget.state() == {"layer": 0, "head": 0, "word": 0}


def test_the_other_widgets_do_not_wait_for_anywidget():
    code = "import sys; from mha_lesson.show import widgets; print('anywidget' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]


def test_the_picture_joins_the_word_to_where_it_looks():
    fig = viewer(layer=1, head=2, word=3).picture()
    left, right = fig.axes
    assert left.get_title() == "Layer 1, head 2: book looks most at Maya, 0.531."
    np.testing.assert_array_equal([line.get_ydata() for line in left.lines], [[3, 0], [3, 1], [3, 2], [3, 3]])
    widths = [line.get_linewidth() for line in left.lines]
    assert widths == sorted(widths, reverse=True)
    assert {"0.531", "0.250", "0.125", "0.094"} <= {text.get_text() for text in left.texts}
    (chosen,) = right.patches
    assert chosen.get_xy() == (2 * 5 - 0.5, 1 * 5 - 0.5)  # maps of four words and a gap of one


def test_the_small_maps_hold_every_head():
    tiles = viewer().picture().axes[1].images[0].get_array()
    for layer, head in np.ndindex(2, 3):
        tile = tiles[layer * 5 : layer * 5 + 4, head * 5 : head * 5 + 4]
        np.testing.assert_array_equal(tile, WEIGHTS[layer, head])
    assert tiles.mask[4].all()


def test_a_long_text_is_pictured_as_a_map():
    words = [f"w{index}" for index in range(61)]
    widget = widgets.HeadViewer(some_weights(1, 1, 61, 61), words)
    np.testing.assert_array_equal(widget.picture().axes[0].images[0].get_array(), widget.weights[0, 0])


def test_words_may_hold_anything():
    widgets.HeadViewer(WEIGHTS, ["$x^", "<b>", "a very long word indeed", ""]).png()


# ---------------------------------------------------------------- for the browser


def test_weights_travel_in_two_bytes_each():
    data = head_viewer.packed(WEIGHTS)
    assert len(data) == 2 * WEIGHTS.size
    there = np.frombuffer(data, "<u2").reshape(WEIGHTS.shape) / 65535
    np.testing.assert_allclose(there, WEIGHTS, atol=1e-5, rtol=0)
    assert head_viewer.packed([0.0, 1.0]) == b"\x00\x00\xff\xff"


def test_the_colours_are_the_palettes():
    ramp = np.frombuffer(head_viewer.colour_ramp(), np.uint8).reshape(256, 3)
    np.testing.assert_array_equal(ramp[[0, 255]], [[0x00, 0x22, 0x4E], [0xFE, 0xE8, 0x38]])


def test_state_is_what_the_browser_chose():
    pytest.importorskip("anywidget")
    widget = viewer(head=1)
    assert widget.state() == {"layer": 0, "head": 1, "word": 0}
    widget.box.set_state({"layer": 1, "word": 3})  # what a click sends
    assert widget.state() == {"layer": 1, "head": 1, "word": 3}
    assert set(widget.for_browser()) <= set(widget.box.keys)


def test_an_install_has_the_script():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "**/*.js" in project["tool"]["setuptools"]["package-data"]["mha_lesson"]
    script = head_viewer.SCRIPT.read_text(encoding="utf-8")
    assert "http" not in script.replace("http://www.w3.org/2000/svg", "")  # a name, not an address


# A page that stands in for the notebook: it runs the script with a model of a few lines.
PAGE = """async ([script, state]) => {
  const bytes = (text) => new DataView(Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer);
  state.weights = bytes(state.weights); state.ramp = bytes(state.ramp);
  const listeners = {};
  window.model = {
    saved: [],
    get: (name) => state[name],
    set(name, value) {
      const changes = state[name] !== value;
      state[name] = value;
      if (changes) listeners["change:" + name]?.();
    },
    save_changes() { this.saved.push([state.layer, state.head, state.word]); },
    on: (name, run) => { listeners[name] = run; },
    off: (name) => { delete listeners[name]; },
    count: () => Object.keys(listeners).length,
  };
  window.commands = [];
  document.addEventListener("keydown", (event) => commands.push(event.key));
  const module = await import(URL.createObjectURL(new Blob([script], { type: "text/javascript" })));
  window.cleanup = module.default.render({ model, el: document.body });
}"""


@pytest.fixture(scope="module")
def chromium():
    browser_lab.require()
    with browser_lab.chromium() as browser:
        yield browser


@pytest.fixture
def shown(chromium):
    """Shows a viewer on an empty page: shown(widget) -> the page."""
    from base64 import b64encode

    complaints = []

    def show_page(widget):
        page = chromium.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        state = {**widget.for_browser(), **widget.start}
        for name in ("weights", "ramp"):
            state[name] = b64encode(state[name]).decode()
        page.evaluate(PAGE, [head_viewer.SCRIPT.read_text(encoding="utf-8"), state])
        return page

    yield show_page
    assert not complaints


def sentence(page):
    return page.get_by_role("status").inner_text()


@pytest.mark.slow
def test_browser_and_python_say_the_same(shown):
    widget = viewer()
    page = shown(widget)
    for layer, head, word in np.ndindex(2, 3, 4):
        page.evaluate("place => ['layer', 'head', 'word'].forEach((name, i) => model.set(name, place[i]))",
                      [layer, head, word])  # fmt: skip
        assert sentence(page) == widget.describe(layer, head, word)
    numbers = page.locator(".seen .number").all_inner_texts()
    assert numbers == ["0.531", "0.250", "0.125", "0.094"]
    assert page.locator(".seen .best").inner_text().split() == ["Maya", "0.531"]


@pytest.mark.slow
def test_the_mouse_looks_and_a_click_keeps(shown):
    widget = viewer(layer=1, head=2, word=3)
    page = shown(widget)
    page.get_by_role("option", name="placed").hover()
    assert sentence(page) == widget.describe(1, 2, 1)
    assert page.evaluate("model.saved") == []  # nothing was asked of Python
    page.mouse.move(0, 0)
    assert sentence(page) == widget.describe(1, 2, 3)
    page.get_by_role("option", name="placed").click()
    page.mouse.move(0, 0)
    assert sentence(page) == widget.describe(1, 2, 1)
    page.get_by_role("gridcell", name="Layer 0, head 1").click()
    assert sentence(page) == widget.describe(0, 1, 1)
    page.get_by_role("combobox", name="layer").select_option("1")
    assert page.evaluate("model.saved") == [[1, 2, 1], [0, 1, 1], [1, 1, 1]]


@pytest.mark.slow
def test_the_keyboard_reaches_everything(shown):
    widget = viewer(layer=1, head=2, word=3)
    page = shown(widget)
    focused = "document.activeElement.getAttribute('aria-label')"
    for expected in ("layer", "head", "Layer 1, head 2", "book"):
        page.keyboard.press("Tab")
        assert page.evaluate(focused) == expected
    for key, word in (("ArrowUp", 2), ("ArrowUp", 1), ("Home", 0), ("ArrowUp", 0), ("End", 3), ("ArrowDown", 3)):
        page.keyboard.press(key)
        assert sentence(page) == widget.describe(1, 2, word)
        assert page.evaluate(focused) == TOKENS[word]
    page.keyboard.press("Shift+Tab")
    for key, place in (("ArrowLeft", (1, 1)), ("ArrowUp", (0, 1)), ("End", (0, 2)), ("ArrowRight", (0, 2))):
        page.keyboard.press(key)
        assert sentence(page) == widget.describe(*place, 3)
        assert page.evaluate(focused) == "Layer {}, head {}".format(*place)
    page.keyboard.press("d")
    assert not {"d", "ArrowUp", "Home"} & set(page.evaluate("commands"))  # no command for the notebook
    chosen = page.locator("[aria-selected=true]").evaluate_all("all => all.map(one => one.ariaLabel)")
    assert chosen == ["Layer 0, head 2", "book"]


@pytest.mark.slow
def test_small_maps_are_painted_and_words_are_no_html(shown):
    tokens = ["<b>", "a&b", "<script>alert(1)</script>", "$"]
    page = shown(widgets.HeadViewer(WEIGHTS, tokens))
    assert page.locator(".looks li").all_inner_texts() == ["<b>", "a&b", "<script>alert(1)</s…", "$"]
    page.wait_for_function("[...document.images].every(image => image.naturalWidth === 4)")
    pixel = """async () => {
      const canvas = document.createElement('canvas'), pen = canvas.getContext('2d');
      pen.drawImage(document.images[5], 0, 0);
      return [...pen.getImageData(0, 3, 1, 1).data];
    }"""
    step = round(255 * WEIGHTS[1, 2, 3, 0] / WEIGHTS.max())
    ramp = head_viewer.colour_ramp()
    assert page.evaluate(pixel) == [*ramp[3 * step : 3 * step + 3], 255]


@pytest.mark.slow
def test_a_view_that_goes_leaves_nothing_behind(shown):
    page = shown(widgets.HeadViewer(WEIGHTS[0], TOKENS))
    assert page.get_by_role("combobox").count() == 1  # one layer: only the head is to be chosen
    assert page.evaluate("model.count()") == 3
    page.evaluate("cleanup()")
    assert page.evaluate("model.count()") == 0
