"""The whole way, in a small copy of the course."""

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

from mha_lesson.course import bootstrap, paths

LESSON = json.dumps({"cells": [{"cell_type": "code", "source": "x = 1", "outputs": [1]}], "metadata": {}})
FAKE_LAB = "import sys\nprint('LAB', sys.prefix, *sys.argv[1:])\n"


def make_wheel(folder, name, version, source):
    """The smallest wheel: one module that can be started with -m."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": source,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(text.encode())}\n"
    files[f"{info}/RECORD"] = record + f"{info}/RECORD,,\n"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)


class SmallCourse:
    """A copy of the course that needs one tiny package, started by a Python that has nothing."""

    def __init__(self, folder):
        self.root = folder / "Kurs mit Leerzeichen – 注意"
        self.wheels = folder / "wheels"
        self.elsewhere = folder / "elsewhere"
        for made in (self.root / "notebooks", self.root / "mha_lesson", self.wheels, self.elsewhere):
            made.mkdir(parents=True)
        package = paths.ROOT / "mha_lesson"
        for file in ("__init__.py", "__main__.py", "places.py"):
            shutil.copy(package / file, self.root / "mha_lesson")
        shutil.copytree(package / "course", self.root / "mha_lesson" / "course")
        (self.root / "pyproject.toml").write_text('[project]\ndependencies = ["jupyterlab>=1"]\n')
        (self.root / "requirements.txt").write_text("jupyterlab==1.0\n")
        (self.root / "notebooks" / "00_start_here.ipynb").write_text(LESSON)
        make_wheel(self.wheels, "jupyterlab", "1.0", FAKE_LAB)
        self.venv = self.root / ".venv"
        self.stamp = self.venv / bootstrap.STAMP

    def give_venv_pip(self):
        """What `ensurepip` would do, in a tenth of the time: copy the pip that is here."""
        import venv

        venv.create(self.venv, symlinks=os.name != "nt")
        site = next(self.venv.glob("[Ll]ib/**/site-packages"))
        for part in Path(sysconfig.get_path("purelib")).glob("pip*"):
            if part.name == "pip" or part.name.startswith("pip-"):
                shutil.copytree(part, site / part.name)

    def start(self, *arguments, wheels=True):
        """-S: a Python without any installed package. No network in any case."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("PIP_", "MHA_", "PYTHON"))}
        variables = {**kept, "PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull, "PYTHONUTF8": "1"}
        if wheels:
            variables["PIP_FIND_LINKS"] = self.wheels.as_uri()
        return subprocess.run(
            [sys.executable, "-S", str(self.root / "mha_lesson"), *arguments],
            cwd=self.elsewhere, env=variables, capture_output=True, encoding="utf-8",
        )  # fmt: skip


def test_the_whole_way(tmp_path):
    course = SmallCourse(tmp_path)

    # doctor works with nothing installed, and says what to do
    done = course.start("doctor")
    assert done.returncode == 1 and "[fail] the packages are not installed yet" in done.stdout
    assert not course.venv.exists()

    # no network: one clear reason, a mend, no stamp
    course.give_venv_pip()
    done = course.start("lab", wheels=False)
    assert done.returncode == 1 and "PIP_FIND_LINKS" in done.stderr and "Traceback" not in done.stderr
    assert not course.stamp.exists()

    # with an offline folder the install is completed, and the lab started inside .venv
    done = course.start("lab", "--no-browser", "--", "--port", "9000")
    assert done.returncode == 0, done.stdout + done.stderr
    started = done.stdout.splitlines()[-1]
    assert started.startswith(f"LAB {course.venv} ") and started.endswith(" --port 9000")
    assert f"--ServerApp.root_dir={course.root}" in started
    assert json.loads(course.stamp.read_text())["without"] == []

    # it opened a copy of the lesson; the learner writes into it
    copy = course.root / "my_lessons" / "00_start_here.ipynb"
    assert "--LabApp.default_url=/lab/tree/my_lessons/00_start_here.ipynb" in started
    copy.write_text(copy.read_text().replace("x = 1", "my own words"))

    # the second start installs nothing and needs no network
    done = course.start("lab", wheels=False)
    assert done.returncode == 0 and "Installing" not in done.stdout and "LAB" in done.stdout

    # a package was removed since: it is put back
    for module in course.venv.glob("[Ll]ib/**/site-packages/jupyterlab*"):
        shutil.rmtree(module) if module.is_dir() else module.unlink()
    done = course.start("lab")
    assert done.returncode == 0 and "Installing" in done.stdout and "LAB" in done.stdout

    # new pins that cannot be had now: the packages of before are used
    (course.root / "requirements.txt").write_text("jupyterlab==1.1\n")
    done = course.start("lab", wheels=False)
    assert done.returncode == 0 and "Going on with those of before" in done.stdout and "LAB" in done.stdout

    # and neither the lesson nor the learner's copy was touched
    assert (course.root / "notebooks" / "00_start_here.ipynb").read_text() == LESSON
    assert "my own words" in (course.root / "my_lessons" / "00_start_here.ipynb").read_text()
