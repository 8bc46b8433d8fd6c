"""Which word starts what."""

import argparse
import difflib
import importlib
import os
import sys
from typing import NamedTuple

import mha_lesson
from mha_lesson.course.errors import CourseError
from mha_lesson.course.paths import COMMAND

WORDS = {
    "lab": "install what is missing (once) and open your copies of the lessons in JupyterLab",
    "test": "run every test, then compare every stored output of the notebooks",
    "doctor": "say what works on this machine, and how to mend what does not",
    "refresh": "run notebooks again and store their outputs, cleaned",
    "benchmark": "time and memory of forms of attention, side by side",
    "train": "train one of the small models again, or compare its variants",
    "parallel": "attention over several processes: the demos of lesson 13",
    "faults": "put faults into the code: who notices?",
}

EXAMPLES = {
    "": ["lab", "test", "doctor", "refresh 03", "benchmark numpy", "train speech", "faults --list"],
    "lab": [
        "lab",
        "lab --fresh 03                             (start lesson 03 again; your old copy is kept)",
        "lab --original                             (the stored notebooks, with their outputs)",
        "lab --no-browser -- --port 9000            (what follows -- goes to JupyterLab)",
    ],
    "test": ["test", "test -- -k softmax                         (what follows -- goes to pytest)"],
    "doctor": ["doctor"],
    "refresh": ["refresh 03                                 (by number, name or path; all without a name)", "refresh"],
    "parallel": ["parallel heads", "parallel ring --processes 4"],
}


class Program(NamedTuple):
    """A word whose options the program behind it reads: `main(arguments)` of a module."""

    module: str
    needs: str = "lab"  # what has to be installed: see requirements.NEEDS
    clone: bool = False  # does it work on the course's folder?


PROGRAMS = {
    "benchmark": Program("mha_lesson.benchmark.command"),
    "train": Program("mha_lesson.models.command"),
    "faults": Program("tests.faults.run", needs="test", clone=True),
}


class Parser(argparse.ArgumentParser):
    """argparse, with errors in the course's own voice."""

    def error(self, message):
        raise CourseError(message[:1].upper() + message[1:] + ".", f"{COMMAND} --help shows what there is.")


def shown(word):
    """The examples of a word as its help shows them."""
    return "\n".join(["examples:", *(f"  {COMMAND} {line}" for line in EXAMPLES.get(word, []))])


def parser():
    as_written = argparse.RawDescriptionHelpFormatter
    top = Parser(
        prog=COMMAND,
        description="The command line of the course on multi-head attention.",
        epilog=f"{shown('')}\n\n{COMMAND} WORD --help says more of each.",
        formatter_class=as_written,
    )
    top.add_argument("--version", action="version", version=f"mha_lesson {mha_lesson.__version__}")
    words = top.add_subparsers(dest="word", metavar="WORD", parser_class=Parser)
    add = {
        word: words.add_parser(word, help=text, description=text, epilog=shown(word), formatter_class=as_written)
        for word, text in WORDS.items()
    }
    add["lab"].add_argument("--no-browser", action="store_true", help="only print the address")
    add["lab"].add_argument("--fresh", nargs="+", metavar="NAME", default=[], help="start these lessons again")
    add["lab"].add_argument("--original", action="store_true", help="open the stored notebooks, not your copies")
    add["test"].add_argument("--quick", action="store_true", help="leave out the tests that take long")
    add["test"].add_argument("--slowest", action="store_true", help="say which tests and cells took longest")
    add["refresh"].add_argument("names", nargs="*", metavar="NAME", help="such as 03 or 03_scaling")
    add["refresh"].add_argument(
        "--check", action="store_true", help="only say what would change (exit code 1; 2 if a notebook fails)"
    )
    add["refresh"].add_argument(
        "--pictures", action="store_true", help="store each picture as it looks now, even where its data is the same"
    )
    add["parallel"].add_argument("demo", choices=["heads", "ring"], help="what is shared out: the heads, or the tokens")
    add["parallel"].add_argument("--processes", type=int, default=2, metavar="N", help="how many; torchrun has its own")
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


def main(arguments=None):
    """Run one command; the result is the exit code."""
    print_what_the_console_can()
    try:
        return dispatch(list(sys.argv[1:] if arguments is None else arguments))
    except CourseError as error:
        print(f"mha_lesson: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # `... | head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
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
    if arguments and arguments[0] in PROGRAMS:
        return run_program(arguments)
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


def run_program(arguments):
    """The word's options are the program's own; its help needs nothing installed."""
    from mha_lesson.course import bootstrap, paths

    word, *rest = arguments
    program = PROGRAMS[word]
    if program.clone:
        paths.require_clone(word)
        sys.path.insert(0, str(paths.ROOT))  # another `tests` may be installed somewhere
    if not {"-h", "--help"} & set(rest):
        bootstrap.ensure(arguments, program.needs)
    return importlib.import_module(program.module).main(rest)


def lab(options, extra, arguments):
    from mha_lesson.course import bootstrap, copies
    from mha_lesson.course import lab as jupyter

    bootstrap.ensure(arguments, "hub" if copies.on_a_hub() else "lab")
    return jupyter.run(extra, browser=not options.no_browser, fresh=options.fresh, original=options.original)


def test(options, extra, arguments):
    from mha_lesson.course import bootstrap, paths, suite

    paths.require_clone("test")
    bootstrap.ensure(arguments, "test")
    return suite.run(extra, quick=options.quick, slowest=options.slowest)


def refresh(options, extra, arguments):
    from mha_lesson.course import bootstrap, paths

    paths.require_clone("refresh")
    bootstrap.ensure(arguments, "test")
    from mha_lesson.course import refresh as notebooks

    return notebooks.run(options.names, check=options.check, pictures=options.pictures)


def doctor(options, extra, arguments):
    from mha_lesson.course import doctor as examine

    return examine.run(arguments)


def parallel(options, extra, arguments):
    from mha_lesson.course import bootstrap

    if "RANK" not in os.environ:  # torchrun has chosen the Python, on machines that may have no more than torch
        bootstrap.ensure(arguments)
    try:
        command = importlib.import_module("mha_lesson.pytorch.parallel.command")
    except ModuleNotFoundError as error:
        raise CourseError(str(error)) from None  # it says that torch is missing, and what to do
    return command.main(options.demo, options.processes)


COMMANDS = {"lab": lab, "test": test, "refresh": refresh, "doctor": doctor, "parallel": parallel}
