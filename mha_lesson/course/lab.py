"""Open JupyterLab at the learner's copy of the first lesson."""

import os
import sys
from pathlib import Path

from mha_lesson import places
from mha_lesson.course import bootstrap, copies, kernel, paths, requirements
from mha_lesson.course.errors import CourseError

SETTINGS = Path(__file__).parent / "jupyter"  # labconfig/page_config.json: what JupyterLab shall not load


def run(extra, browser=True, fresh=(), original=False):
    """Become JupyterLab. The stored notebooks stay as they are: it opens copies (copies.py)."""
    say_versions()
    folder = paths.NOTEBOOKS if original else own_copies(fresh)
    if not paths.inside_venv() and not places.installed():
        make_findable(folder, beside=not original)
    if copies.on_a_hub():
        print(f"This already runs inside a JupyterHub: open {as_in_the_list(folder)} in the file list on the left.")
        return 0
    start(command(folder, extra, browser), environment())
    return 0


def own_copies(fresh):
    """The folder with the learner's copies, made or brought up to date."""
    folder = copies.folder()
    for line in copies.news(copies.prepare(folder, fresh), folder):
        print(line)
    return folder


def make_findable(folder, beside):
    """In an environment that is not the course's own, notebooks have to find the course as well."""
    if line := kernel.make_findable(folder, beside):
        print(line)
    if not copies.on_a_hub():
        return  # the server that starts now is told where the course is
    answer = kernel.ask(folder)
    if beside and answer.python and not answer.right:  # the hub's kernels are another Python than this one
        kernel.stand_in(folder)
        answer = kernel.ask(folder)
    if not answer.right:
        said = answer.said or f"it found {answer.found}"
        raise CourseError(f"A notebook could not import the course: {said}.", kernel.mend(answer))


def as_in_the_list(folder):
    """The first lesson as the file list of a hub shows it: it starts at the home."""
    file = folder / paths.START.name
    return file.relative_to(Path.home()).as_posix() if file.is_relative_to(Path.home()) else str(file)


def say_versions():
    """Your own environment may differ from the one that the stored outputs were made in: one line, if so."""
    if paths.inside_venv() or not paths.REQUIREMENTS.is_file():
        return
    needed = {need.name for need in requirements.ranges("lab")}
    lacks = requirements.unmet(requirements.pins())
    other = [str(lack) for lack in lacks if lack.found and lack.requirement.name in needed]
    if other:
        more = f" and {len(other) - 1} more" if len(other) > 1 else ""
        print(
            f"note: using your own environment, {sys.prefix}, with other versions than the stored outputs: "
            f"{other[0]}{more}. {paths.COMMAND} doctor lists them."
        )


def command(folder, extra, browser=True):
    """The server starts in the course's folder if the lessons are in it, so that its files can be read, too."""
    inside = not places.installed() and folder.is_relative_to(paths.ROOT)
    root = paths.ROOT if inside else folder
    options = [
        f"--ServerApp.root_dir={root}",
        "--LabApp.default_url=" + first_page(folder, root),
        "--log-level=WARN",  # only the address, and what goes wrong
        # No request leaves the machine, and no "would you like news?" stands in the way.
        "--LabApp.news_url=None",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    ]
    if not browser:
        options.append("--no-browser")
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        options.append("--allow-root")  # in a container one usually is root
    return [sys.executable, "-m", "jupyterlab", *options, *extra]


def first_page(folder, root):
    file = folder / paths.START.name
    return "/lab/tree/" + file.relative_to(root).as_posix() if file.is_file() else "/lab"


def environment():
    return {
        **os.environ,
        "PYTHONPATH": bootstrap.course_first(os.environ.get("PYTHONPATH")),
        # A kernel of the same name in your home must not win over this environment's.
        "JUPYTER_PREFER_ENV_PATH": "1",
        # Beside your own settings: nobody is asked about news before the first lesson (news_url does not help there).
        "JUPYTER_CONFIG_PATH": os.pathsep.join(filter(None, [str(SETTINGS), os.environ.get("JUPYTER_CONFIG_PATH")])),
        # Windows' own letters are not those of the lessons.
        "PYTHONUTF8": os.environ.get("PYTHONUTF8", "1"),
    }


def start(command, environment):
    print(
        "Starting JupyterLab. To stop it: Ctrl-C here, twice.\n"
        "Each open lesson keeps memory of its own: File > Close and Shut Down Notebook when you are done with one.",
        flush=True,
    )
    if os.name != "nt":
        os.execve(command[0], command, environment)
    sys.exit(bootstrap.run_and_wait(command, environment))
