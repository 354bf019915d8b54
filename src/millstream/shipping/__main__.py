"""`python -m millstream.shipping`: the second process of `SecondProcess`."""

from __future__ import annotations

import os
import signal
import sys

import millstream.core.graph
import millstream.shipping.pickler  # noqa: F401  (imported before it forks)
from millstream.shipping.second import serve

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a module prints when it is imported is no answer
    serve(sys.stdin.buffer, answers)
