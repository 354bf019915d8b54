"""Ways to be wrong about rows that are kept in a Delta table, and about how long the log keeps what; `make mutants` plays them."""

from tests.mutations import Mutant

DELTA_ROWS = "tests/writer/test_delta_rows.py"
COMPACTION = "tests/log/test_compaction.py tests/log/test_compaction_upkeep.py"
LAWS = "tests/log/test_compaction_laws.py"
UPKEEP = "tests/log/test_upkeep.py"
KEEPING = "tests/log/test_keeping.py"

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
    Mutant(
        "one retention for all streams",
        "log/upkeep.py",
        "return self._streams.get(stream, self._usual)",
        "return self._usual",
        UPKEEP,
    ),
    Mutant(
        "files of all times are merged",
        "log/keeping.py",
        "return AgeGroup(span, int(file.modified) // span)",
        "return None",
        UPKEEP,
    ),
    Mutant(
        "what is not known yet to be needed leaves the log",
        "log/keeping.py",
        "return min(self.known, self.needed_from.get(stream, self.known + 1) - 1)",
        "return self.needed_from.get(stream, 1 << 60) - 1",
        UPKEEP,
    ),
    Mutant(
        "a writer hears only later what is needed",
        "writer/process.py",
        "Needs(begin.newest, begin.needed_from)",
        "Needs(begin.newest, {})",
        "tests/writer/test_process.py",
    ),
    Mutant("what is young is compacted", "log/compaction.py", "if not keeping.is_old(file, now))", "if False)", COMPACTION),
    Mutant("what somebody lacks is compacted", "log/compaction.py", "min([settled, snapshot.upto", "min([snapshot.upto", COMPACTION),
    Mutant(
        "a pass goes on though somebody needs it whole",
        "log/compaction.py",
        "self._pass.upto > needs.settled(self._pass.stream)",
        "False",
        COMPACTION,
    ),
    Mutant(
        "what was compacted is not superseded",
        "log/compaction.py",
        "        if not len(at.keys):\n            return []\n",
        "        return []\n",
        LAWS,
    ),
    Mutant(
        "what is newer than the compacted epochs is superseded too",
        "log/compaction.py",
        ' & _mask(pc.less_equal(whole["epoch"], at.compacted))',
        "",
        LAWS,
    ),
    Mutant(
        "the newest is the last in its file",
        "log/compaction.py",
        "pc.sort_indices(index, sort_keys=ORDER)",
        'pc.sort_indices(index, sort_keys=[("row", "ascending")])',
        LAWS,
    ),
    Mutant("deletions stay for good", "log/compaction.py", "gone[newest] = _deletions(", "_deletions(", LAWS),
    Mutant(
        "how far it is compacted is not said",
        "log/compaction.py",
        "self._commit(snapshot, rewriting, {at.stream: at.upto})",
        "self._commit(snapshot, rewriting, {})",
        COMPACTION,
    ),
    Mutant(
        "checkpoints of the table lose how far it is compacted",
        "log/snapshot.py",
        'elif row["appId"].startswith(COMPACTED):',
        "elif False:",
        COMPACTION,
    ),
    Mutant(
        "what is compacted is young again",
        "log/compaction.py",
        "modified=int(was.modified) // 1000,",
        "modified=int(was.modified) // 1000 + 10**7,",
        COMPACTION,
    ),
    Mutant(
        "what was written in vain stays on the disk",
        "log/compaction.py",
        "        self._history.discard(rewriting.staged)\n",
        "",
        COMPACTION,
    ),
    Mutant("a portion is all that is old", "log/compaction.py", "and file.first > first:", "and False:", COMPACTION),
    Mutant(
        "a step looks through all that is compacted",
        "log/compaction.py",
        "        if part and (rows",
        "        if False and (rows",
        COMPACTION,
    ),
    Mutant("a few records begin a pass", "log/compaction.py", "if not is_much and now <", "if False and now <", COMPACTION),
    Mutant("a stream that is not kept can be compacted", "topology.py", "and not stream.injection.keep)", "and False)", KEEPING),
    Mutant(
        "what was asked for a stream is forgotten",
        "core/graph.py",
        "streams[found.name] = replace(found, compact_after=after)",
        "streams[found.name] = found",
        KEEPING,
    ),
]
