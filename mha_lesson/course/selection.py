"""What follows `test --`: files, options, and options with a value. Standard library alone.

    test -- 03_scaling.ipynb -k data --junitxml out.xml

names one notebook, and has two options whose values (a folder `data` exists!) are no files to be tested.
"""

from pathlib import Path
from typing import NamedTuple

from mha_lesson.course import paths
from mha_lesson.course.errors import CourseError

# Options of pytest and of its plugins here that take the next argument for their value.
WITH_VALUE = frozenset(
    """
    -c -k -m -n -o -p -r -W
    --anyio-mode --assert --basetemp --capture --code-highlight --color --confcutdir --config-file --cov-config
    --cov-report --deselect --dist --doctest-glob --doctest-report --durations --durations-min --hypothesis-profile
    --hypothesis-seed --hypothesis-verbosity --ignore --ignore-glob --import-mode --jaxtyping-packages --junit-prefix
    --junit-xml --junitprefix --junitxml --last-failed-no-failures --lfnf --log-auto-indent --log-cli-date-format
    --log-cli-format --log-cli-level --log-date-format --log-disable --log-file --log-file-date-format
    --log-file-format --log-file-level --log-file-mode --log-format --log-level --max-warnings --max-worker-restart
    --maxfail --maxprocesses --maxschedchunk --nbval-cell-timeout --nbval-kernel-name --nbval-kernel-startup-timeout
    --nbval-sanitize-with --numprocesses --override-ini --pastebin --pdbcls --px --pythonwarnings --report-chars
    --rootdir --rsyncdir --rsyncignore --sanitize-with --show-capture --tb --testrunuid --tx --verbosity
    """.split()  # noqa: SIM905
)
JUNIT = ("--junitxml", "--junit-xml")
AGAIN = ("--lf", "--last-failed", "--ff", "--failed-first")


class Selection(NamedTuple):
    options: list[str]  # for both phases
    tests: list[str]  # files, folders and ids below tests/
    lessons: list[str]  # notebooks, and ids of their cells
    junit: Path | None  # one report for both phases

    @property
    def only_some(self):
        return bool(self.tests or self.lessons)

    def has(self, *names):
        """Is one of these options among them? (`-n4` and `--maxfail=1` are written in one piece.)"""
        return any(option.startswith(names) for option in self.options)


def select(extra):
    """Sort what follows `--`: options for pytest, and what it shall look at: tests, notebooks, or everything."""
    options, tests, lessons, junit = [], [], [], None
    rest = list(extra)
    while rest:
        argument = rest.pop(0)
        name, equals, value = argument.partition("=")
        if name in JUNIT:
            junit = Path(value if equals else value_of(name, rest)).absolute()
        elif argument in WITH_VALUE:
            options += [argument, value_of(argument, rest)]
        elif argument.startswith("-") or not (path := existing(argument)):
            options.append(argument)
        else:
            chosen = lessons if path.suffix == ".ipynb" or path == paths.NOTEBOOKS else tests
            chosen.append(str(path) + argument[len(file_of(argument)) :])
    if any(option in AGAIN for option in options):
        # What failed is known for each phase by itself: without this, the other phase would run everything.
        options.append("--last-failed-no-failures=none")
    return Selection(options, tests, lessons, junit)


def value_of(option, rest):
    if not rest:
        raise CourseError(
            f"Expected a value after {option}, got nothing.", f"write it after {option}, or leave it out."
        )
    return rest.pop(0)


def existing(argument):
    """The file or folder that an argument names: from the course's folder, or a notebook by its name alone."""
    file = file_of(argument)
    return next((path for path in (paths.ROOT / file, paths.NOTEBOOKS / file) if path.exists()), None)


def file_of(argument):
    """ "a.ipynb" of "a.ipynb::cell-6"."""
    return argument.split("::")[0]
