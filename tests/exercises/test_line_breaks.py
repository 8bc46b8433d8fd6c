"""Texts of the exercises fill their lines: no line ends before a word that would still have fitted.

A text that was edited here and there gets odd breaks, and the next one who edits it wonders why.
"""

import ast
import re
from pathlib import Path

import pytest

import mha_lesson

WIDTH = 120
FILES = sorted((Path(mha_lesson.__file__).parent / "exercises").glob("lesson_*/*.py"))
FRAGMENT = re.compile(r'\s*(?P<prefix>[a-z]*)(?P<quote>["\'])(?P<text>.*)(?P=quote)(?P<behind>[\])},]*)$')


def texts(source):
    """(first line, last line) of each text that has several, from 0."""
    nodes = ast.walk(ast.parse(source))
    found = [n for n in nodes if isinstance(n, ast.JoinedStr) or isinstance(getattr(n, "value", None), str)]
    return sorted({(n.lineno - 1, n.end_lineno - 1) for n in found if n.end_lineno > n.lineno})


def word_of_paragraph(line, following):
    """What `line` of a triple-quoted text could have taken from the one below it; "" if that is another paragraph."""
    same = len(following) - len(following.lstrip()) == len(line) - len(line.lstrip())
    if not same or not line.strip(' "') or not following.strip() or following.lstrip().startswith(('"""', "- ", "* ")):
        return ""
    return " " + following.split()[0]


def word_of_fragment(line, following):
    """The same where a text is written as "one " and "two": the first word, with what stands behind the last."""
    this, that = FRAGMENT.match(line), FRAGMENT.match(following)
    if not this or not that or this["text"].endswith("\\n") or this["behind"]:
        return ""
    word = re.match(r"\s*[^\s{]*(\{[^}]*\}[^\s{]*)*\s?", that["text"])[0]
    longer = "f" * ("{" in word and "f" not in this["prefix"])
    return longer + word + (that["behind"] if word == that["text"] else "")


def early_breaks(source):
    """(line number from 1, the word that would have fitted) for each break that comes too early."""
    lines = source.split("\n")
    for first, last in texts(source):
        for i in range(first, last):
            fragments = FRAGMENT.match(lines[first]) or FRAGMENT.match(lines[last])
            word = (word_of_fragment if fragments else word_of_paragraph)(lines[i], lines[i + 1])
            if word and len(lines[i]) + len(word) <= WIDTH:
                yield i + 1, word.strip()


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_no_line_ends_before_a_word_that_would_have_fitted(file):
    assert not list(early_breaks(file.read_text(encoding="utf8")))


LONG = "word " * 20  # 100 characters


@pytest.mark.parametrize(
    "source, found",
    [
        (f'def f():\n    """{LONG}\n    fits."""', [(2, 'fits."""')]),
        (f'def f():\n    """{LONG}\n    does_not_fit_here."""', []),
        (f'def f():\n    """{LONG}\n\n    Another paragraph."""', []),
        (f'def f():\n    """{LONG}\n        indented."""', []),
        (f'x = (\n    "{LONG}"\n    "fits"\n)', [(2, "fits")]),
        (f'x = (\n    "{LONG}"\n    "fits, and more"\n)', [(2, "fits,")]),
        (f'x = (\n    "{LONG}\\n"\n    "new line"\n)', []),
        (f'x = (\n    "{LONG}",\n    "text of its own"\n)', []),
        (f'x = (\n    f"{LONG}"\n    f"{{a + b}} fits"\n)', [(2, "{a + b}")]),
        (f'x = (\n    f"{LONG}"\n    f"{{a_long_name + b}} does not"\n)', []),
    ],
)
def test_the_rule_itself(source, found):
    assert list(early_breaks(source)) == found
