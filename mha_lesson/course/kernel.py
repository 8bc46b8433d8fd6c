"""Can a notebook import the course? A kernel that nobody started through `lab` has to find it, too.

`lab` tells the server that it starts where the course is. A hub, VS Code, or a server of your own
are started otherwise, in an environment that may be yours, your institution's, or read-only:

    the environment may be written     a file in its site-packages says where the course is (a .pth)
    it may not                         a small file beside the copies does: a kernel looks there first
    the package was installed by pip   nothing to do

Standard library alone; `ask` runs jupyter_client in a process of its own.
"""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import NamedTuple

from mha_lesson.course import install, paths

STAND_IN = "mha_lesson.py"  # beside the copies

# Start the kernel that the server would take for "python3", in the folder that is named first.
ASK = """
import sys
from jupyter_client.manager import start_new_kernel
said = []
def note(message):
    content = message["content"]
    said.append(content.get("text", "") if message["msg_type"] == "stream" else content.get("evalue", ""))
manager, client = start_new_kernel(kernel_name="python3", startup_timeout=120, cwd=sys.argv[1])
try:
    code = "import sys; print(sys.executable); import mha_lesson; print(mha_lesson.__file__)"
    client.execute_interactive(code, timeout=120, allow_stdin=False, output_hook=note)
finally:
    client.stop_channels()
    manager.shutdown_kernel(now=True)
print("ANSWER")
print("".join(said))
"""

# What a kernel's Python does first, without Jupyter: the folder of the notebook is where it looks first.
IMPORT = "import sys; sys.path.insert(0, ''); import mha_lesson; print(mha_lesson.__file__)"

BESIDE_COPIES = '''"""Made by `{command} lab`: notebooks in this folder find the course through it."""

import importlib
import os
import runpy
import sys

COURSE = {root}

if not os.path.isfile(os.path.join(COURSE, "mha_lesson", "__init__.py")):
    raise ModuleNotFoundError("The course is no longer in " + COURSE + ". To mend: start lab where it is now.")
sys.path.insert(0, COURSE)
if __name__ == "__main__":  # the command line, typed in this folder
    runpy.run_module("mha_lesson", run_name="__main__", alter_sys=True)
else:  # the real package takes the place of this file
    del sys.modules["mha_lesson"]
    importlib.import_module("mha_lesson")
'''


class Answer(NamedTuple):
    python: str  # which Python runs the notebooks; "" if no kernel started
    found: str  # the file of the package that it imported; "" if it found none
    said: str  # what went wrong

    @property
    def right(self):
        return bool(self.found) and same(Path(self.found).parent, paths.ROOT / "mha_lesson")


def same(one, other):
    return one.resolve() == other.resolve()


def surroundings():
    """The environment variables of a server that knows nothing of the course."""
    others = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part and part != str(paths.ROOT)]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(others), "PYTHONSAFEPATH": ""}
    if not os.environ.get("JUPYTERHUB_SERVICE_PREFIX"):
        variables["JUPYTER_PREFER_ENV_PATH"] = "1"  # as `lab` starts its own
    return variables


def ask(folder):
    """Start a real kernel in this folder and let it import the course."""
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", ASK, str(folder)],
            env=surroundings(), capture_output=True, encoding="utf-8", errors="replace", timeout=300,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Answer("", "", "no kernel answered within 5 minutes")
    if done.returncode:
        return Answer("", "", (done.stderr.strip().splitlines() or ["it died without a word"])[-1])
    python, *rest = done.stdout.partition("ANSWER\n")[2].strip().splitlines() or [""]
    last = rest[-1] if rest else ""
    return Answer(python, last, "") if last.endswith("__init__.py") else Answer(python, "", last or "no answer")


def ask_python(folder):
    """The same question to this Python alone, without a kernel: quick."""
    command = [sys.executable, "-c", IMPORT]
    done = subprocess.run(command, cwd=folder, env=surroundings(), capture_output=True, encoding="utf-8")
    return Answer(sys.executable, done.stdout.strip(), done.stderr.strip())


def make_findable(folder, beside=True):
    """Let notebooks in this folder find the course, whoever starts them. A line on what was written, or None.

    beside: may a file be written there? Not into the folder of the stored notebooks.
    """
    answer = ask_python(folder)
    if answer.right:
        return None
    site = Path(sysconfig.get_path("purelib"))
    if not answer.found:  # another copy of the course keeps its place in this environment
        try:
            install.link_course([site])
            if ask_python(folder).right:
                return f"Notebooks in this environment find the course through {site / install.LINK}."
        except OSError:
            pass  # somebody else's, or read-only
    return stand_in(folder) if beside else None


def stand_in(folder):
    """A small file beside the copies; it works for whichever Python runs them."""
    file = folder / STAND_IN
    text = BESIDE_COPIES.format(command=paths.COMMAND, root=ascii(str(paths.ROOT)))
    if not file.exists() or file.read_text(encoding="utf-8") != text:
        file.write_text(text, encoding="utf-8")
    return f"Notebooks in this folder find the course through {file}."


def mend(answer):
    """The one line that makes any environment find the course."""
    return f'"{answer.python or sys.executable}" -m pip install -e "{paths.ROOT}"'
