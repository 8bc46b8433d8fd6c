"""What tests of several figures and widgets share."""

import re
from html import unescape

import numpy as np

TOKENS = ["Maya", "placed", "the", "book"]


VIEW = "application/vnd.jupyter.widget-view+json"


def words_of(html):
    """The visible text of some HTML."""
    html = re.sub(r"<style>.*?</style>", "", html, flags=re.S)
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", html)))


def spoken(html):
    """The sentence for screen readers."""
    return unescape(re.search(r'<p role="status" aria-live="polite">(.*?)</p>', html).group(1))


def tick_names(axis):
    return [text.get_text() for text in axis.get_ticklabels()]


def written(axes):
    return [text.get_text() for text in axes.texts]


POSITIONS = np.array([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0], [-0.6, 0.8]])


SCORES = np.array([[0.0, 2.0, 1.0, -1.0], [5.0, 1.0, 1.0, 1.0], [0, 0, 0, 3.0], [1, 1, 1, 1.0]])
