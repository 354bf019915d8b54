"""`python -m millstream.mill FD`: plans for the driver at the other end of this socket."""

from __future__ import annotations

import os
import signal
import socket
import sys

from millstream.mill.channel import Channel
from millstream.mill.process import serve


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all of a terminal's processes; the driver ends this one in order
    serve(Channel(socket.socket(fileno=int(sys.argv[1]))))
    os._exit(0)  # whoever still greets a lane must not keep the process


if __name__ == "__main__":
    main()
