"""One line that says what is happening while pip works.

On a terminal the line is rewritten in place, with a clock, so that nobody thinks the
computer hangs while a large file arrives. In a log file (CI) each step is a line.
"""

import re
import sys
import threading
import time

WHEEL = r"(?P<what>\S+?\.(?:whl|tar\.gz))(?!\.metadata)(?P<size> \([^)]*\))?"

STEPS = [
    (re.compile(r"^Collecting (?P<what>[A-Za-z0-9._-]+)"), "looking for {what}"),
    (re.compile(r"^\s*Downloading " + WHEEL), "downloading {what}{size}"),
    (re.compile(r"^\s*Using cached (?P<what>\S+?\.whl)"), "found {what} in the cache"),
    (re.compile(r"^Processing (?P<what>.+)"), "reading {what}"),
    (re.compile(r"^Installing collected packages"), "unpacking everything (one to three minutes)"),
    (re.compile(r"Retrying \(Retry"), "the network does not answer, trying again"),
]
LARGE = re.compile(r"\((\d{2,}(\.\d+)? MB|[\d.]+ GB)\)")


def short_name(file):
    """torch-2.13.0 of a path to torch-2.13.0-cp311-cp311-win_amd64.whl"""
    name = re.split(r"[\\/]", file)[-1]
    return "-".join(name.split("-")[:2]) if name.endswith(".whl") else name


def describe(line):
    """A pip line in human words, or None for one that nobody needs."""
    for pattern, words in STEPS:
        match = pattern.search(line)
        if match:
            parts = {key: value or "" for key, value in match.groupdict().items()}
            if "what" in parts:
                parts["what"] = short_name(parts["what"])
            return words.format(**parts)
    return None


def worth_a_line(words):
    """A log needs only the steps that take long: of a hundred files, the large ones."""
    return not words.startswith(("looking for", "found", "reading", "downloading")) or bool(LARGE.search(words))


class Progress:
    """Use as `with Progress() as progress: progress.say("...")`."""

    def __init__(self, out=None, interval=1.0):
        self.out = out or sys.stdout
        self.live = self.out.isatty()
        self.interval = interval
        self.start = time.monotonic()
        self.words = ""
        self.done = threading.Event()
        self.clock = threading.Thread(target=self._tick, daemon=True)

    def __enter__(self):
        if self.live:
            self.clock.start()
        return self

    def __exit__(self, *exc):
        self.done.set()
        if self.live:
            self.clock.join()
            self.out.write("\r" + " " * 78 + "\r")
            self.out.flush()

    def say(self, words):
        if words is None or words == self.words:
            return
        self.words = words
        if not self.live and worth_a_line(words):
            self.out.write(self._line() + "\n")
            self.out.flush()

    def _line(self):
        seconds = int(time.monotonic() - self.start)
        return f"  [{seconds // 60}:{seconds % 60:02d}] {self.words}"[:78]

    def _tick(self):
        while not self.done.wait(self.interval):
            self.out.write("\r" + self._line().ljust(78))
            self.out.flush()
