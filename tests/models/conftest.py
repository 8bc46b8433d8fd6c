"""Fixtures of the tests of the models."""

import json

import pytest

from mha_lesson.data import SENTENCE
from mha_lesson.models import results
from mha_lesson.models.minilm import MiniLMEncoder
from tests.models.helpers import RECORD


@pytest.fixture
def sweeps(tmp_path, monkeypatch):
    """A folder with one record, instead of data/sweeps."""
    folder = tmp_path / "sweeps"
    folder.mkdir()
    (folder / "speech.json").write_text(json.dumps(RECORD), "utf-8")
    monkeypatch.setattr(results, "SWEEPS", folder)
    results._read.cache_clear()
    yield folder
    results._read.cache_clear()


@pytest.fixture(scope="module")
def encoder():
    return MiniLMEncoder()


@pytest.fixture(scope="module")
def encoding(encoder):
    return encoder(SENTENCE)
