"""What `import mha_lesson.exercises` loads."""

import subprocess
import sys


def test_the_exercises_import_neither_torch_nor_matplotlib():
    code = (
        "import sys, mha_lesson.exercises as e; e.check('03.scores', lambda q, k: q); "
        "print({'torch', 'matplotlib'} & set(sys.modules))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "set()"
