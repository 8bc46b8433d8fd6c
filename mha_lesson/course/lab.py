"""Open JupyterLab at the first notebook."""

import os
import sys

from mha_lesson.course import bootstrap, paths


def run(extra, browser=True):
    """Become JupyterLab. It writes a notebook only when you save it, or when its own autosave does."""
    if os.environ.get("JUPYTERHUB_SERVICE_PREFIX"):
        print("This already runs inside a JupyterHub: open notebooks/00_start_here.ipynb in the file list on the left.")
        return 0
    start(command(extra, browser), environment())
    return 0


def command(extra, browser=True):
    options = [
        f"--ServerApp.root_dir={paths.ROOT}",
        "--LabApp.default_url=" + first_page(),
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


def first_page():
    if not paths.START.is_file():
        return "/lab"
    return "/lab/tree/" + paths.START.relative_to(paths.ROOT).as_posix()


def environment():
    return {
        **os.environ,
        "PYTHONPATH": bootstrap.course_first(os.environ.get("PYTHONPATH")),
        # A kernel of the same name in your home must not win over this environment's.
        "JUPYTER_PREFER_ENV_PATH": "1",
    }


def start(command, environment):
    print("Starting JupyterLab. To stop it: Ctrl-C here, twice.", flush=True)
    if os.name != "nt":
        os.execve(command[0], command, environment)
    sys.exit(bootstrap.run_and_wait(command, environment))
