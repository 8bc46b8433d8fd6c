"""Make ``bike_hours.npz``: the bikes rented in Washington, D.C., in each hour of the year 2011.

    python data/make_series.py islp-0.6.0-py3-none-any.whl

The source is the table Bikeshare in the Python package ``ISLP`` (data/README.md tells how to get
it), the year 2011 of UCI's "Bike Sharing". The table has no row for 115 of the 8760 hours. It has
no row with zero rentals either: an hour without a rental is an hour without a row, and gets 0 here.
The same source gives the same bytes each time: nothing in the file is compressed, and its dates
are fixed.
"""

import csv
import datetime
import io
import sys
import zipfile
from pathlib import Path

import numpy as np
from make_minilm_layer0 import write_npz

TABLE = "ISLP/data/Bikeshare.csv"
NUM_HOURS = 365 * 24
TARGET = Path(__file__).resolve().parent / "bike_hours.npz"


def make(wheel, target=TARGET):
    with zipfile.ZipFile(wheel) as archive:
        rows = list(csv.DictReader(io.StringIO(archive.read(TABLE).decode("ascii"))))
    counts = np.zeros(NUM_HOURS, dtype=np.int16)
    recorded = np.zeros(NUM_HOURS, dtype=bool)
    working_day = np.zeros(NUM_HOURS, dtype=bool)
    for row in rows:
        day, hour, bikes = int(row["day"]) - 1, int(row["hr"]), int(row["bikers"])
        place = 24 * day + hour
        weekday = (datetime.date(2011, 1, 1) + datetime.timedelta(day)).isoweekday() % 7
        assert not recorded[place] and bikes > 0 and weekday == int(row["weekday"])
        counts[place], recorded[place] = bikes, True
        working_day[24 * day : 24 * day + 24] = row["workingday"] == "1"
    about = "From UCI's Bike Sharing (CC BY 4.0), changed: see README.md beside this file."
    arrays = {"counts": counts, "recorded": recorded, "working_day": working_day}
    write_npz(target, {"about": np.bytes_(about), **arrays})


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: python data/make_series.py WHEEL [TARGET]")
    make(*sys.argv[1:])
