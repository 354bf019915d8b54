"""Processes of Millstream's own beside the driver."""

from __future__ import annotations

import os
import socket
import subprocess
import sys


def start_process(module: str, theirs: socket.socket) -> subprocess.Popen[bytes]:
    """A process of Millstream's own beside this one, that is given this end of a socket; it imports what this one can."""
    paths = os.pathsep.join(dict.fromkeys(entry or os.getcwd() for entry in sys.path))
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", module, str(theirs.fileno())],  # -P: a uuid.py in the current folder is the user's affair
        pass_fds=[theirs.fileno()],
        env={**os.environ, "PYTHONPATH": paths},
        stdin=subprocess.DEVNULL,
    )
    theirs.close()
    return process


def wait_or_kill(process: subprocess.Popen[bytes], seconds: float) -> int:
    """Its exit code; one that is not gone in time is killed."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
