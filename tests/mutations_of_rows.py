"""Ways to be wrong about rows that are kept in a Delta table, and about how long the log keeps what; `make mutants` plays them."""

from tests.mutations import Mutant

DELTA_ROWS = "tests/writer/test_delta_rows.py"

ROWS = [
    Mutant(
        "the first change of a key in a step counts",
        "targets/delta_rows.py",
        "if known is None or known[0] < told:",
        "if known is None:",
        DELTA_ROWS,
    ),
    Mutant(
        "the change of a key that comes last counts, whenever it was told",
        "targets/delta_rows.py",
        "if known is None or known[0] < told:",
        "if True:",
        DELTA_ROWS,
    ),
    Mutant(
        "rows are committed after whatever version there is",
        "targets/delta_rows.py",
        ", max_commit_retries=0)",
        ")",
        DELTA_ROWS,
    ),
    Mutant(
        "files that others have written are not looked into",
        "targets/row_files.py",
        "        if self.version != table.version():\n",
        "        if self.version is None:\n",
        DELTA_ROWS,
    ),
    Mutant(
        "a changed row stays where it was, too",
        "targets/delta_rows.py",
        "rows = rows.filter(pc.invert(pc.is_in(rows[self._rows.key], keys)))",
        "rows = rows.slice(0)",
        DELTA_ROWS,
    ),
    Mutant("small files stay small", "targets/row_files.py", "if len(files) >= MERGED for", "if False for", DELTA_ROWS),
    Mutant(
        "every file is written anew by every step",
        "targets/row_files.py",
        "[file for file in self._files.values() if file.holds(wanted)]",
        "list(self._files.values())",
        DELTA_ROWS,
    ),
    Mutant(
        "a step that came to nothing leaves its removals",
        "targets/delta_rows.py",
        "        self._removed.clear()\n        self._live.forget()\n",
        "        self._live.forget()\n",
        DELTA_ROWS,
    ),
]
