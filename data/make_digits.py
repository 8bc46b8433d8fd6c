"""Make ``digits.npz``: 1797 handwritten digits of 8 x 8 pixels.

    python data/make_digits.py scikit_learn-1.9.1-cp311-cp311-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl

The source is the wheel of ``scikit-learn`` (any wheel that holds the same digits.csv.gz;
data/README.md tells how to get it), which has the test set of UCI's "Optical Recognition of
Handwritten Digits". Every number is kept, and so is the order of the images. The same source gives
the same bytes each time: nothing in the file is compressed, and its dates are fixed.
"""

import gzip
import sys
import zipfile
from pathlib import Path

import numpy as np
from make_minilm_layer0 import write_npz

TABLE = "sklearn/datasets/data/digits.csv.gz"
TARGET = Path(__file__).resolve().parent / "digits.npz"


def make(wheel, target=TARGET):
    with zipfile.ZipFile(wheel) as archive:
        lines = gzip.decompress(archive.read(TABLE)).decode("ascii").split()
    # A line is 64 pixels, row by row, and the digit: "0.000000000000000000e+00,...".
    table = np.array([[float(number) for number in line.split(",")] for line in lines])
    exact = table.astype(np.uint8)
    assert exact.shape[1] == 65 and (exact == table).all()
    about = "The test set of UCI's Optical Recognition of Handwritten Digits (CC BY 4.0): see README.md."
    write_npz(
        target,
        {"about": np.bytes_(about), "images": exact[:, :64].reshape(-1, 8, 8), "labels": exact[:, 64]},
    )


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: python data/make_digits.py WHEEL [TARGET]")
    make(*sys.argv[1:])
