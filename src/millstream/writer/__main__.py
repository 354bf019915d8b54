"""`python -m millstream.writer FD`: writes for the driver at the other end of this socket."""

from __future__ import annotations

import os
import signal
import socket
import sys

from millstream.mill.channel import Channel
from millstream.writer.process import serve

NICE = 5  # nobody waits for it, and everyone for planner, lanes and driver: at 5,000 records/s p50 8.1 ms, 9.6 without


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):  # these reach all of a terminal's or a service's processes; the driver ends this one
        signal.signal(number, signal.SIG_IGN)
    os.nice(NICE)
    serve(Channel(socket.socket(fileno=int(sys.argv[1]))))
    sys.stdout.flush()
    os._exit(0)  # threads that write for a target that hangs must not keep the process


if __name__ == "__main__":
    main()
