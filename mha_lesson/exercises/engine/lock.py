"""One writer at a time, also among several kernels: a lock on a file of its own.

The system lets go of the lock when its holder ends, however it ends. Nobody waits longer than
`SECONDS`. Where a lock cannot be had at all (a folder on a server that knows none, a browser) the
work goes on without.
"""

import contextlib
import errno
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

if sys.platform == "win32":
    import msvcrt

    def _take(file: IO) -> None:
        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
else:

    def _take(file: IO) -> None:
        try:
            import fcntl
        except ImportError:  # a browser
            raise OSError(errno.ENOLCK, "no locks here") from None
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


SECONDS = 1.5
_TAKEN = (errno.EACCES, errno.EAGAIN, errno.EDEADLK)  # somebody else has it


@contextlib.contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Holds the lock while the block runs. False: somebody else had it all the time."""
    with path.open("a") as file:  # closing it gives the lock back
        yield _wait_for(file)


def _wait_for(file: IO) -> bool:
    end = time.monotonic() + SECONDS
    while True:
        try:
            _take(file)
            return True
        except OSError as error:
            if error.errno not in _TAKEN:
                return True  # there are no locks here
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
