"""Ways to be wrong about the history that a new computation begins with; `make mutants` plays them."""

from tests.mutations import Mutant

HISTORY = "tests/sources/test_history.py"

HISTORIES = [
    Mutant(
        "take the present of a stream before its history",
        "core/planning.py",
        "    taken = backlog.take(limits, here, backlog.held(sources))\n",
        "    taken = backlog.take(limits, here)\n",
        HISTORY,
    ),
    Mutant(
        "let the present go while some of the history waits",
        "core/planning.py",
        "if not sources.get(name, UNKNOWN).finished or any(place[2] == name for place in self._queues):",
        "if not sources.get(name, UNKNOWN).finished:",
        HISTORY,
    ),
    Mutant(
        "let low watermarks pass a history",
        "core/graph.py",
        "(*node.injectors, *(read.history for read in node.inputs if read.from_oldest))",
        "node.injectors",
        HISTORY,
    ),
    Mutant(
        "promise by what is read of a history, not by what is left",
        "sources/history.py",
        "accumulate((_oldest(file) for file in reversed(by_last)), min)",
        "accumulate((_oldest(file) for file in reversed(by_last)), max)",
        HISTORY,
    ),
    Mutant(
        "give its history to one that is known",
        "mill/beginning.py",
        "and (history.reader in ledger.readers or history.stream not in ledger.latest)",
        "and history.stream not in ledger.latest",
        HISTORY,
    ),
    Mutant(
        "begin a history anew with every run",
        "sources/history.py",
        "history(self._disk, stream, self._after, self._upto)",
        "history(self._disk, stream, 0, self._upto)",
        HISTORY,
    ),
    Mutant(
        "read a history that the log does not have yet",
        "sources/history.py",
        "        if not self._wait(self._is_logged):\n            return\n",
        "",
        HISTORY,
    ),
    Mutant(
        "feed a history without an end to what waits",
        "sources/history.py",
        "if not self._wait(lambda: self._untaken <= PARTS_AHEAD):",
        "if self._stopped:",
        HISTORY,
    ),
]
