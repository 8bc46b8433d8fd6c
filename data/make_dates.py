"""Make ``dates.tsv``: dates as people write them in many languages, and the same dates in ISO form.

    python data/make_dates.py babel-2.19.0-py3-none-any.whl

A line holds text, ISO date and language: "samedi 29 novembre 2025", "2025-11-29", "fr". How a date
is written comes from the Unicode Common Locale Data Repository (CLDR), which is part of the Python
package ``babel`` (data/README.md tells how to get it): the full, long and medium form of each
language. Forms of digits alone (29.11.2025) are left out, since nothing in them says which number
is the month.

Every line has a date of its own, so that no part of the file shares a date with another. Dates,
languages and forms are drawn by checksums, which are the same on every computer.
"""

import datetime
import hashlib
import sys
import tempfile
import zipfile
from pathlib import Path

# Chosen for their orders, while the alphabet stays small (README.md says more).
LANGUAGES = [
    *("en", "fil"),  # month, day, year
    *("de", "fr", "es", "it", "pt", "nl", "sv", "da", "fi", "pl", "cs", "hr", "ro", "sw", "tr"),  # day, month, year
    *("hu", "lt", "eu", "ja"),  # year, month, day
    "lv",  # year, day, month
]
FORMS = ["full", "long", "medium"]
FIRST, LAST = datetime.date(1900, 1, 1), datetime.date(2099, 12, 31)
NUM_LINES = 20_000
TARGET = Path(__file__).resolve().parent / "dates.tsv"


def checksum(text):
    return hashlib.sha256(text.encode("ascii")).digest()


def draw_dates():
    """NUM_LINES different dates, in shuffled order."""
    days = [FIRST + datetime.timedelta(days) for days in range((LAST - FIRST).days + 1)]
    return sorted(days, key=lambda day: checksum(day.isoformat()))[:NUM_LINES]


def write_date(day, format_date):
    """A date -> one text of it and its language."""
    digest = checksum(f"form of {day.isoformat()}")
    language = LANGUAGES[int.from_bytes(digest[:8], "big") % len(LANGUAGES)]
    texts = [format_date(day, form, language) for form in FORMS]
    texts = [text for text in texts if any(sign.isalpha() for sign in text)]
    return texts[int.from_bytes(digest[8:16], "big") % len(texts)], language


def make(wheel, target=TARGET):
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
        sys.path.insert(0, folder)  # this babel, not one that is installed
        from babel.dates import format_date

        written = [(day, *write_date(day, format_date)) for day in draw_dates()]
    lines = "".join(f"{text}\t{day.isoformat()}\t{language}\n" for day, text, language in written)
    Path(target).write_bytes(lines.encode("utf-8"))


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: python data/make_dates.py WHEEL [TARGET]")
    make(*sys.argv[1:])
