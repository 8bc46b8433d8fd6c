"""The first file that `python3 -m mha_lesson ...` runs.

It does one thing before anything else: look at the Python that runs it. The rest
of the course is written for Python 3.11 to 3.14, and an older Python would stop
with a SyntaxError that helps nobody. So this file keeps to what every Python
since 2.7 can read: no f-strings, no annotations.
"""

from __future__ import print_function

import os
import sys

OLDEST = (3, 11)
NEWEST = (3, 14)


def python_problem(version):
    """One line on why this Python will not do, or None if it will."""
    found = tuple(version[:2])
    if OLDEST <= found <= NEWEST:
        return None
    return (
        "mha_lesson needs Python %d.%d to %d.%d, this is %d.%d. To mend: install one of these "
        "(python.org, your system's packages, conda or uv) and start with it, for example: %s"
        % (OLDEST + NEWEST + found + (example_command(),))
    )


def example_command():
    if os.name == "nt":
        return "py -3.12 -m mha_lesson lab"
    return "python3.12 -m mha_lesson lab"


def main():
    problem = python_problem(sys.version_info)
    if problem:
        print(problem, file=sys.stderr)
        return 1
    if not __package__:
        # Started by its path, `python3 some/folder/mha_lesson`: then Python looks for
        # imports inside the package; let it look beside the package instead.
        sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    from mha_lesson.course.cli import main as course

    return course(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
