"""Drives a real JupyterLab with a real browser, for test_browser.py.

    with lab(folder) as address, chromium() as browser:
        notebook = Notebook(browser, address, "notebooks/03_scaling.ipynb")
        notebook.run_all()

JupyterLab starts as `python3 -m mha_lesson lab` starts it, but on a free port, in another folder,
and with settings of its own: your settings are neither read nor changed.
"""

import contextlib
import importlib.util
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from mha_lesson.course import lab as course_lab

BROWSERS = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "C:/Program Files/Google/Chrome/Application/chrome.exe",
)
BROWSER_OPTIONS = (
    "--no-sandbox",  # a container often runs as root
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
SETTINGS = {
    # Every cell is on the page, also the ones that are out of sight.
    "@jupyterlab/notebook-extension/tracker": {"windowingMode": "none", "autoStartDefaultKernel": True},
    "@jupyterlab/docmanager-extension/plugin": {"autosave": False},
    "@jupyterlab/apputils-extension/notification": {
        "fetchNews": "false",
        "checkForUpdates": False,
        "doNotDisturbMode": True,
    },
}
# Where Playwright is, if it is not installed beside the course: last, so that nothing else is taken from there.
if os.environ.get("MHA_LESSON_PLAYWRIGHT"):
    sys.path.append(os.environ["MHA_LESSON_PLAYWRIGHT"])
PATIENCE = 60  # seconds that any one step may take on a busy machine


def require():
    """Skip a test where there is no browser. Whoever names one in MHA_LESSON_BROWSER asked for it: then fail."""
    if problem := missing():
        (pytest.fail if os.environ.get("MHA_LESSON_BROWSER") else pytest.skip)(problem)


def missing():
    """What the tests in a browser lack here, or None."""
    if importlib.util.find_spec("playwright") is None:
        return "playwright is not installed (pip install playwright)"
    if not browser_path():
        named = os.environ.get("MHA_LESSON_BROWSER")
        return f"no browser at MHA_LESSON_BROWSER={named}" if named else "no Chromium or Chrome is installed"
    return None


def browser_path():
    """Chromium or Chrome on this machine, or None. MHA_LESSON_BROWSER names another."""
    named = os.environ.get("MHA_LESSON_BROWSER")
    return next(filter(None, map(shutil.which, [named] if named else BROWSERS)), None)


# ---------------------------------------------------------------- the server


@contextlib.contextmanager
def lab(folder, settings=SETTINGS):
    """JupyterLab for the notebooks in `folder`. Gives its address, with {} where a page's path goes."""
    with tempfile.TemporaryDirectory(prefix="mha_lesson_lab_", ignore_cleanup_errors=True) as private:
        private, port, token = Path(private), free_port(), secrets.token_hex(12)
        write_settings(private / "settings", settings)
        with (private / "lab.log").open("wb") as log:
            server = subprocess.Popen(
                lab_command(folder, port, token), env=lab_environment(private), stdout=log, stderr=subprocess.STDOUT
            )
            address = f"http://127.0.0.1:{port}/{{}}?token={token}"
            try:
                wait_for(server, address.format("api/status"), private / "lab.log")
                yield address
            finally:
                stop(server, address)


def lab_command(folder, port, token):
    """The course's own command line, for another folder and without an open door to your browser."""
    command = course_lab.command(Path(folder), [], browser=False)
    return [option for option in command if not option.startswith("--ServerApp.root_dir=")] + [
        f"--ServerApp.root_dir={folder}",
        "--ServerApp.ip=127.0.0.1",
        f"--ServerApp.port={port}",
        "--ServerApp.port_retries=0",
        f"--IdentityProvider.token={token}",
        "--LabApp.expose_app_in_browser=True",  # window.jupyterapp, which the test talks to
    ]


def lab_environment(private):
    """No file of yours is read: settings, signatures of trusted notebooks, matplotlib's, IPython's."""
    places = {
        "JUPYTER_CONFIG_DIR": "config",
        "JUPYTER_DATA_DIR": "data",
        "JUPYTER_RUNTIME_DIR": "runtime",
        "JUPYTERLAB_SETTINGS_DIR": "settings",
        "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
        "IPYTHONDIR": "ipython",
    }
    variables = {name: str(private / place) for name, place in places.items()}
    hub = [name for name in os.environ if name.startswith("JUPYTERHUB_")]
    inherited = {name: value for name, value in course_lab.environment().items() if name not in [*hub, "MPLBACKEND"]}
    return {**inherited, **variables, "MHA_LESSON_PROGRESS": os.devnull}


def write_settings(folder, settings):
    for plugin, values in settings.items():
        file = folder / f"{plugin}.jupyterlab-settings"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(values), encoding="utf-8")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(server, address, log):
    """Return when the server answers; what it said if it does not."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and server.poll() is None:
        try:
            request(address)
            return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError(f"JupyterLab did not start:\n{log.read_text(encoding='utf-8', errors='replace')[-3000:]}")


def request(address, method="GET"):
    with urllib.request.urlopen(urllib.request.Request(address, method=method), timeout=5) as answer:
        return answer.read()


def stop(server, address):
    """End the kernels, then the server: nothing is left running."""
    with contextlib.suppress(OSError, ValueError):
        for kernel in json.loads(request(address.format("api/kernels"))):
            request(address.format(f"api/kernels/{kernel['id']}"), "DELETE")
    server.terminate()
    try:
        server.wait(15)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


# ---------------------------------------------------------------- the browser


@contextlib.contextmanager
def chromium(width=1280, height=900):
    """A browser without a window. Its storage is new each time and vanishes with it."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path(), args=BROWSER_OPTIONS)
        try:
            yield browser.new_context(viewport={"width": width, "height": height})
        finally:
            browser.close()


IS_READY = """() => {
    const context = window.jupyterapp?.shell.currentWidget?.context;
    const kernel = context?.sessionContext?.session?.kernel;
    return context?.isReady && context.sessionContext.isReady
        && kernel?.connectionStatus === 'connected' && kernel.status === 'idle';
}"""
RUN_ALL = "() => jupyterapp.commands.execute('notebook:run-all-cells')"
RUN_ONE = """async index => {
    jupyterapp.shell.currentWidget.content.activeCellIndex = index;
    await jupyterapp.commands.execute('notebook:run-cell');
}"""
CELLS = """() => [...jupyterapp.shell.currentWidget.content.widgets].map(cell => ({
    type: cell.model.type,
    source: cell.model.sharedModel.getSource(),
    count: cell.model.executionCount ?? null,
    outputs: cell.model.type === 'code' ? cell.model.outputs.toJSON() : [],
}))"""
SET_SOURCE = """([index, source]) =>
    jupyterapp.shell.currentWidget.content.widgets[index].model.sharedModel.setSource(source)"""


class Notebook:
    """A notebook that is open in JupyterLab, with everything the browser complained about.

    `outside`: addresses that were asked for and are not this machine's. `complaints`: errors on
    the browser's console.
    """

    def __init__(self, browser, address, path):
        self.page = browser.new_page()
        self.page.set_default_timeout(1000 * PATIENCE)
        self.outside, self.complaints = [], []
        self.page.on("request", lambda sent: self._note_request(sent.url))
        self.page.on("websocket", lambda opened: self._note_request(opened.url))
        self.page.on("console", lambda said: self.complaints.append(said.text) if said.type == "error" else None)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.goto(address.format(f"lab/tree/{path}") + "&reset")  # without the tabs of last time
        self.page.wait_for_function(IS_READY)  # running cells before that opens a dialog instead

    def _note_request(self, url):
        here = ("http://127.0.0.1:", "ws://127.0.0.1:", "data:", "blob:")
        if not url.startswith(here):
            self.outside.append(url)

    def run_all(self):
        """Run every cell and wait for the last one."""
        self.page.evaluate(RUN_ALL)
        self.page.wait_for_function(IS_READY)

    def run(self, index, source):
        """Type this source into a cell, run it, and give back what it shows."""
        self.page.evaluate(SET_SOURCE, [index, source])
        self.page.evaluate(RUN_ONE, index)
        return self.cells()[index]["outputs"]

    def cells(self):
        """Every cell as a dict: type, source, count, outputs."""
        return self.page.evaluate(CELLS)

    def find(self, text):
        """The index of the one code cell whose source holds this text."""
        found = [i for i, cell in enumerate(self.cells()) if cell["type"] == "code" and text in cell["source"]]
        assert len(found) == 1, f"{text!r} is in cells {found}"
        return found[0]

    def on_screen(self, index):
        """The cell in the page (a Playwright locator)."""
        return self.page.locator(".jp-Notebook .jp-Cell").nth(index)
