"""The NumPy half starts without PyTorch and pictures."""

from tests.helpers import run_python


def test_the_numpy_half_starts_without_torch_and_matplotlib():
    done = run_python(
        """
        import importlib, pkgutil, sys
        import mha_lesson
        assert "numpy" not in sys.modules, "import mha_lesson alone is light"
        import mha_lesson.steps
        names = [m.name for m in pkgutil.iter_modules(mha_lesson.steps.__path__)]
        for name in names:
            importlib.import_module("mha_lesson.steps." + name)
        import mha_lesson.attention
        print(sorted(names))
        print(sorted({"torch", "matplotlib", "IPython", "ipywidgets"} & set(sys.modules)))
        """
    )
    assert done.returncode == 0, done.stderr[-2000:]
    names, heavy = done.stdout.splitlines()
    for name in ("embeddings", "heads", "lookup", "masks", "projections", "scores", "softmax"):
        assert f"'{name}'" in names
    assert heavy == "[]"
