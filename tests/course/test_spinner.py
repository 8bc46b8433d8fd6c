"""Progress in human words."""

import io

import pytest

from mha_lesson.course import spinner


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("Collecting torch==2.13.0 (from -r requirements.txt (line 3))", "looking for torch"),
        ("  Downloading torch-2.13.0-cp311-cp311-win_amd64.whl (122.1 MB)", "downloading torch-2.13.0 (122.1 MB)"),
        ("  Downloading torch-2.13.0-cp311-cp311-win_amd64.whl.metadata (30 kB)", None),
        ("Processing c:\\wheels\\torch-2.13.0-cp311-cp311-win_amd64.whl", "reading torch-2.13.0"),
        ("Requirement already satisfied: numpy", None),
    ],
)
def test_progress_in_human_words(line, words):
    assert spinner.describe(line) == words


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_log_gets_only_what_takes_long():
    out = io.StringIO()
    with spinner.Progress(out) as shown:
        for words in ("looking for numpy", "downloading six-1.17 (11 kB)", "downloading torch-2.13.0 (122.1 MB)", None):
            shown.say(words)
    assert out.getvalue().splitlines() == ["  [0:00] downloading torch-2.13.0 (122.1 MB)"]


def test_a_terminal_gets_one_line_with_a_clock():
    out = Terminal()
    with spinner.Progress(out, interval=0.01) as shown:
        shown.say("looking for numpy")
        for _ in range(500):
            if "looking" in out.getvalue():
                break
            shown.done.wait(0.01)
    assert "\r  [0:00] looking for numpy" in out.getvalue()
    assert "\n" not in out.getvalue()
