"""Make sure that a Python with everything the course needs is running.

    running Python has it all?   -> use it (a venv of your own, conda, Binder, a hub)
    else .venv is complete?      -> start again inside it, at once
    else                         -> make .venv, install, then start again inside it

A stamp in `.venv` says "complete, for this requirements.txt". It is written last, so an
install that was killed leaves no stamp, and the next start finishes the work.
Standard library alone: this runs before anything is installed.
"""

import hashlib
import json
import os
import subprocess
import sys

from mha_lesson import places
from mha_lesson.course import paths, requirements
from mha_lesson.course.errors import CourseError

STAMP = "mha_lesson_ready.json"
# How often this command has started itself again inside .venv: never for ever.
AGAIN = "MHA_LESSON_STARTED_AGAIN"
# Set when new pins could not be installed and the packages of before are used.
AS_IT_IS = "MHA_LESSON_ENVIRONMENT_AS_IT_IS"


def ensure(arguments, needs="lab"):
    """Return if the running Python will do; otherwise start the command again in one that does.

    needs: a key of requirements.NEEDS. A hub's kernels run in the hub's environment, so that no
    .venv would help there: what is lacking is said.
    """
    paths.require_course_folder()
    started_again = int(os.environ.get(AGAIN, "0"))
    if ready(needs):
        os.environ.pop(AGAIN, None)
        return
    if places.installed() or needs == "hub":
        raise lacking(missing(needs))
    if started_again >= 2:
        raise CourseError(
            f"The packages were installed into {paths.VENV}, yet these are not as expected: "
            f"{', '.join(map(str, missing(needs)))}.",
            "delete the folder .venv and run the same command again.",
        )
    # A second try means that the stamp says "complete" and is wrong: a package was removed.
    if started_again or not venv_complete():
        from mha_lesson.course import install

        install.build()
    start_again(arguments, started_again + 1)


def ready(needs="lab"):
    """Does the running Python have it all? In our own .venv the stamp has a say too."""
    if paths.inside_venv() and not stamp_fits() and not os.environ.get(AS_IT_IS):
        return False
    return not missing(needs)


def missing(needs="lab"):
    """What the running Python lacks. The stamp of .venv may excuse a package that has no
    build for this machine (torch: lessons 00-06 work without it)."""
    excused = read_stamp().get("without", []) if paths.inside_venv() else []
    return requirements.unmet([need for need in requirements.ranges(needs) if need.name not in excused])


def lacking(unmet):
    """Where no .venv is made, nobody's environment is changed: what to install is said."""
    wanted = " ".join(f'"{lack.requirement.name}{lack.requirement.spec}"' for lack in unmet)
    return CourseError(f"This Python lacks {', '.join(map(str, unmet))}.", f"{sys.executable} -m pip install {wanted}")


def venv_complete():
    return stamp_fits() and venv_runs()


def venv_runs():
    """Does .venv have a Python that starts, and that is a virtual environment? (After a
    half-made start it may be missing, or be the system's own: never install into that.)"""
    python = paths.venv_python()
    if not python.exists():  # also when it is a link to a Python that was since removed
        return False
    question = "import sys; sys.exit(sys.prefix == sys.base_prefix)"
    try:
        return subprocess.run([python, "-I", "-c", question], capture_output=True, timeout=60).returncode == 0
    except (OSError, subprocess.TimeoutExpired):  # made on another system, say
        return False


# --- the stamp ---------------------------------------------------------------------


def fingerprint():
    """Changes when requirements.txt does (line endings do not count)."""
    return hashlib.sha256(paths.REQUIREMENTS.read_text(encoding="utf-8").encode()).hexdigest()


def read_stamp():
    try:
        stamp = json.loads((paths.VENV / STAMP).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def stamp_fits():
    if not paths.REQUIREMENTS.is_file():  # an installed package: there is no .venv of its own
        return False
    return read_stamp().get("requirements") == fingerprint()


def write_stamp(without=()):
    half = paths.VENV / (STAMP + ".part")
    half.write_text(json.dumps({"requirements": fingerprint(), "without": list(without)}), encoding="utf-8")
    half.replace(paths.VENV / STAMP)  # the whole stamp or none


def remove_stamp():
    (paths.VENV / STAMP).unlink(missing_ok=True)


# --- starting again ------------------------------------------------------------------


def start_again(arguments, times):
    """Run the same command with the Python of .venv. Does not return."""
    command = [str(paths.venv_python()), "-m", "mha_lesson", *arguments]
    environment = {**os.environ, AGAIN: str(times), "PYTHONPATH": course_first(os.environ.get("PYTHONPATH"))}
    sys.stdout.flush()
    sys.stderr.flush()
    if os.name != "nt":
        os.execve(command[0], command, environment)  # this process becomes that one
    sys.exit(run_and_wait(command, environment))


def run_and_wait(command, environment):
    """Windows has no exec: stay, and leave Ctrl-C to the child."""
    with subprocess.Popen(command, env=environment) as child:
        while True:
            try:
                return child.wait()
            except KeyboardInterrupt:
                continue


def course_first(pythonpath):
    """A PYTHONPATH with the course in front, so that it is found from any folder."""
    return places.first_in_path(paths.ROOT, pythonpath)
