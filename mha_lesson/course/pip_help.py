"""What a failed `pip install` means, and what to do about it.

pip's own last lines are written for people who package software. This file looks for
the few causes that learners meet and says them in one line each.
"""

import platform
import re
import sys
from typing import NamedTuple


class Cause(NamedTuple):
    pattern: str  # a regular expression, tried on the whole output, letter case ignored
    what: str
    mend: str


OFFLINE = (
    "connect to the internet and run the same command again; behind a proxy, set HTTPS_PROXY first. "
    "Without internet: put the wheels in a folder, set PIP_NO_INDEX=1 and PIP_FIND_LINKS=<that folder>, "
    "and run the same command again."
)

# The order matters: the first that fits is told.
CAUSES = [
    Cause(
        r"no space left on device|errno 28|disk quota exceeded|not enough space on the disk",
        "The disk is full.",
        "free some space (the course takes about 2 GB, on Linux with a CUDA build of torch about 8 GB; "
        "TMPDIR may name another disk for temporary files), then run the same command again.",
    ),
    Cause(
        r"long path support|filename too long|file name too long",
        "The folder's path is too long for Windows.",
        r"move the course to a short path such as C:\mha, or enable long paths in Windows, and try again.",
    ),
    Cause(
        r"permission denied|access is denied|winerror 5\b|read-only file system",
        "A file may not be written.",
        "close programs that use the .venv folder, check that the folder is yours, then run the same command again.",
    ),
    Cause(
        r"certificate_verify_failed|certificate verify failed|sslerror|ssl module is not available",
        "The secure connection to the package server was refused.",
        "if your network inspects traffic, set PIP_CERT=<its certificate file>; else check the computer's clock.",
    ),
    Cause(
        r"name resolution|getaddrinfo failed|nodename nor servname|newconnectionerror|connection refused|"
        r"network is unreachable|max retries exceeded|read timed out|readtimeouterror|proxyerror|connection broken|"
        r"incompleteread|remotedisconnected|connection aborted|connection reset",
        "The package server could not be reached.",
        OFFLINE,
    ),
    Cause(
        r"from versions: none\)",
        "pip found no packages at all: there is no network, or the offline folder lacks one.",
        OFFLINE,
    ),
    Cause(
        r"no matching distribution found",
        "One of the pinned packages has no build for this Python on this machine.",
        "start with another Python (3.11 to 3.13 are the safest), and see that it is a 64-bit one.",
    ),
    Cause(
        r"hashes? .*do(es)? not match|bad zip|badzipfile|zip end-of-central-directory|invalid wheel",
        "A downloaded file arrived damaged.",
        "delete pip's download cache (python3 -m pip cache purge) and run the same command again.",
    ),
]

NEAR_THE_CAUSE = re.compile(r"error|errno|no matching|could not", re.IGNORECASE)
# Lines that hold the word "error" and yet say nothing.
CHATTER = re.compile(r"note: this (error|is)|retrying \(retry|\[notice\]|subprocess-exited", re.IGNORECASE)


def last_relevant_line(lines):
    """pip's own word for the failure."""
    lines = [line.strip() for line in lines if line.strip()]
    telling = [line for line in lines if NEAR_THE_CAUSE.search(line) and not CHATTER.search(line)]
    return (telling or lines or ["pip said nothing"])[-1]


def explain(lines):
    """(what, mend) for the output of a pip run that failed."""
    output = "\n".join(lines)
    for cause in CAUSES:
        if re.search(cause.pattern, output, re.IGNORECASE):
            return cause.what, cause.mend
    return "pip stopped.", "read the log, or run the same command again: what is already there is kept."


def lacks(package, lines):
    """Did pip fail for want of a build of this one package, while it found others?"""
    output = "\n".join(lines)
    missing = re.search(rf"no matching distribution found for {package}\b", output, re.IGNORECASE)
    found_others = re.search(r"^\s*(downloading|using cached|processing) ", output, re.IGNORECASE | re.MULTILINE)
    return bool(missing and found_others)


OLDEST_MACOS = 14  # of torch's builds for Apple silicon


def no_torch():
    """Why torch is not to be had here, and the way round it where there is one."""
    machine = platform.machine()
    if sys.platform == "darwin" and machine == "arm64":
        version = platform.mac_ver()[0]
        if version and int(version.split(".")[0]) < OLDEST_MACOS:
            return f"torch needs macOS {OLDEST_MACOS} or newer, this is {version}."
    if sys.platform == "win32" and machine.upper() == "ARM64":
        return (
            "torch has no build for Windows on ARM; with an x64 Python, which runs there too, "
            "pip install torch adds it afterwards."
        )
    return "torch has no build for this machine."
