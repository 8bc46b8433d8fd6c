"""The walls between the packages."""

import subprocess
import sys

import pytest

from mha_lesson.course import paths


def test_the_import_contracts_hold(monkeypatch, capfd):
    from importlinter.cli import lint_imports

    monkeypatch.chdir(paths.ROOT)
    code = lint_imports(config_filename=str(paths.PYPROJECT), no_cache=True)
    assert code == 0, capfd.readouterr().out


@pytest.mark.parametrize("module", ["mha_lesson", "mha_lesson.course.cli", "mha_lesson.attention"])
def test_what_has_to_start_fast_loads_nothing_heavy(module):
    ask = f"import sys, {module}; print(*sorted({{'torch', 'matplotlib', 'IPython', 'nbformat'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", ask], cwd=paths.ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
