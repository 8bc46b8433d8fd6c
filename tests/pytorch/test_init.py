"""What `import mha_lesson.pytorch` says where there is no PyTorch."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (it has no build for this machine)")

from tests.pytorch.helpers import run_python  # noqa: E402


def test_without_torch_the_error_says_what_to_do():
    done = run_python("import sys; sys.modules['torch'] = None; import mha_lesson.pytorch")
    assert done.returncode == 1
    assert "ModuleNotFoundError: mha_lesson.pytorch needs PyTorch" in done.stderr
    assert "pip install torch" in done.stderr
