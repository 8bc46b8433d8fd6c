"""Which word starts what."""

import argparse
import difflib
import sys

import mha_lesson
from mha_lesson.course.errors import CourseError
from mha_lesson.course.paths import COMMAND

WORDS = {
    "lab": "install what is missing (once) and open JupyterLab at the first notebook",
    "test": "run every test, then compare every stored output of the notebooks",
    "doctor": "say what works on this machine, and how to mend what does not",
    "refresh": "run notebooks again and store their outputs, cleaned",
}

EXAMPLES = f"""examples:
  {COMMAND} lab
  {COMMAND} lab --no-browser -- --port 9000     (what follows -- goes to JupyterLab)
  {COMMAND} test -- -k softmax                  (what follows -- goes to pytest)
  {COMMAND} refresh 03                          (by number, name or path; all without a name)
"""


class Parser(argparse.ArgumentParser):
    """argparse, with errors in the course's own voice."""

    def error(self, message):
        raise CourseError(message[:1].upper() + message[1:] + ".", f"{COMMAND} --help shows what there is.")


def parser():
    top = Parser(
        prog=COMMAND,
        description="The command line of the course on multi-head attention.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"mha_lesson {mha_lesson.__version__}")
    words = top.add_subparsers(dest="word", metavar="WORD", parser_class=Parser)
    add = {word: words.add_parser(word, help=text, description=text) for word, text in WORDS.items()}
    add["lab"].add_argument("--no-browser", action="store_true", help="only print the address")
    add["test"].add_argument("--quick", action="store_true", help="leave out the tests that take long")
    add["test"].add_argument("--slowest", action="store_true", help="say which tests and cells took longest")
    add["refresh"].add_argument("names", nargs="*", metavar="NAME", help="such as 03 or 03_scaling")
    add["refresh"].add_argument(
        "--check", action="store_true", help="only say what would change (exit code 1; 2 if a notebook fails)"
    )
    add["refresh"].add_argument(
        "--pictures", action="store_true", help="store each picture as it looks now, even where its data is the same"
    )
    return top


def split(arguments):
    """Our own arguments, and those after `--` for the program behind."""
    if "--" not in arguments:
        return arguments, []
    at = arguments.index("--")
    return arguments[:at], arguments[at + 1 :]


def check_word(arguments):
    """A word that does not exist is answered with the nearest one that does."""
    word = next((a for a in arguments if not a.startswith("-")), None)
    if word is None or word in WORDS:
        return
    near = difflib.get_close_matches(word, WORDS, n=1)
    guess = f" Did you mean {near[0]}?" if near else ""
    raise CourseError(
        f"Expected one of {', '.join(WORDS)}; got {word!r}.{guess}", f"{COMMAND} --help shows what each of them does."
    )


def main(arguments):
    """Run one command; the result is the exit code."""
    print_what_the_console_can()
    try:
        return dispatch(list(arguments))
    except CourseError as error:
        print(f"mha_lesson: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nStopped. The same command goes on from here.", file=sys.stderr)
        return 130


def print_what_the_console_can():
    """A folder's name may hold letters that an old console cannot show: never crash on that."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def dispatch(arguments):
    own, extra = split(arguments)
    check_word(own)
    options = parser().parse_args(own)
    if options.word is None:
        parser().print_help()
        return 0
    if extra and options.word not in ("lab", "test"):
        raise CourseError(f"Nothing can follow -- with {options.word}; got {' '.join(extra)}.", "leave it out.")
    return COMMANDS[options.word](options, extra, arguments)


# Each command imports its module when it runs: the first start has the standard library alone.


def lab(options, extra, arguments):
    from mha_lesson.course import bootstrap
    from mha_lesson.course import lab as jupyter

    bootstrap.ensure(arguments)
    return jupyter.run(extra, browser=not options.no_browser)


def test(options, extra, arguments):
    from mha_lesson.course import bootstrap, suite

    bootstrap.ensure(arguments)
    return suite.run(extra, quick=options.quick, slowest=options.slowest)


def refresh(options, extra, arguments):
    from mha_lesson.course import bootstrap

    bootstrap.ensure(arguments)
    from mha_lesson.course import refresh as notebooks

    return notebooks.run(options.names, check=options.check, pictures=options.pictures)


def doctor(options, extra, arguments):
    from mha_lesson.course import doctor as examine

    return examine.run(arguments)


COMMANDS = {"lab": lab, "test": test, "refresh": refresh, "doctor": doctor}
