"""What several tests of the command line use."""

import os

import pytest
from nbformat import v4

posix = pytest.mark.skipif(os.name == "nt", reason="this test uses POSIX links, scripts or permissions")


OFFLINE = """\
WARNING: Retrying (Retry(total=0, connect=None)) after connection broken by 'NewConnectionError(...)'
ERROR: Could not find a version that satisfies the requirement jupyterlab==4.6.6 (from versions: none)
ERROR: No matching distribution found for jupyterlab==4.6.6"""


NO_TORCH = """\
Collecting numpy==2.4.6
  Downloading numpy-2.4.6-cp311-cp311-macosx_13_0_arm64.whl.metadata (62 kB)
ERROR: Could not find a version that satisfies the requirement torch==2.13.0 (from versions: none)
ERROR: No matching distribution found for torch==2.13.0"""


def lesson(*sources, number=""):
    """A notebook; with the number of its lesson its cells are the course's own."""
    first = f"{number}-" if number else ""
    cells = [v4.new_code_cell(source, id=f"{first}c{n}") for n, source in enumerate(sources)]
    return v4.new_notebook(cells=cells, metadata={"mha_lesson": {"minutes": 20}})


def printed(text, name="stdout"):
    return v4.new_output("stream", name=name, text=text)
