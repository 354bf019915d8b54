"""Ways for joins and tables to be wrong."""

from __future__ import annotations

from tests.mutations import Mutant

JOIN = "tests/operators/test_join.py"
LOOKUP = "tests/operators/test_join_lookup.py"
AS_OF = "tests/operators/test_as_of.py"
VIEW = "tests/operators/test_table_view.py"
GROUPED = "tests/operators/test_table_grouped.py"
NEWEST = "tests/operators/test_table_newest.py"
JOINED = "tests/operators/test_table_joined.py"
CHANGE = "tests/operators/test_table_change.py"
TIMELESS = "tests/operators/test_timeless.py"
OF = "tests/operators/test_of.py"
OPERATORS = [
    # The interval join.
    Mutant(
        "the end of the interval does not belong to it",
        "join/interval.py",
        "bisect_right(side, last, key=_at)",
        "bisect_left(side, last, key=_at)",
        JOIN,
    ),
    Mutant(
        "right records look as far as left ones",
        "join/interval.py",
        "at - self.after, at + self.before)",
        "at - self.before, at + self.after)",
        JOIN,
    ),
    Mutant(
        "a late record is joined with what is left",
        "join/interval.py",
        "case Left(value=left) if late:",
        "case Left(value=left) if False:",
        JOIN,
    ),
    Mutant(
        "an old record without event time is joined with what is left",
        "join/interval.py",
        "late = at < self.low_watermark",
        "late = record.late",
        TIMELESS,
    ),
    Mutant("sides are not looked at", "join/sides.py", "if found is not None and not accepts(kind, found):", "if False:", OF),
    Mutant("rows may be None", "join/sides.py", "if type(None) in members(bare(", "if False and members(bare(", OF),
    Mutant(
        "a record at the low watermark finds its partner gone",
        "join/interval.py",
        "over = bisect_left(side, end",
        "over = bisect_right(side, end",
        JOIN,
    ),
    Mutant("a miss is dated a moment early", "join/interval.py", "at + reach + ms.MICROSECOND", "at + reach", JOIN),
    Mutant(
        "a miss is dated before it came",
        "join/interval.py",
        "max(at, at + reach + ms.MICROSECOND, key=int)",
        "at + reach + ms.MICROSECOND",
        JOIN,
    ),
    Mutant("what was paired is told as a miss", "join/interval.py", "left.paired = right.paired = True", "left.paired = True", JOIN),
    Mutant("nobody waits for an older record", "join/interval.py", "if side[0] is one:", "if len(side) == 1:", JOIN),
    Mutant(
        "after a miss nobody waits for the next",
        "join/interval.py",
        "timestamp=_certain(other.at, self.before))\n        self._wait()",
        "timestamp=_certain(other.at, self.before))",
        JOIN,
    ),
    Mutant("a pair carries the left time", "join/interval.py", "max(left.at, right.at, key=int)", "left.at", JOIN),
    # Lookups.
    Mutant(
        "a row that is gone stays",
        "join/lookup.py",
        "self.state.row = change.after",
        "self.state.row = change.after or change.before",
        LOOKUP,
    ),
    # As of.
    Mutant(
        "a version at the very time does not count",
        "join/as_of.py",
        "bisect_right(self.state.versions, one.at, key=_since)",
        "bisect_right(self.state.versions, one.at - ms.MICROSECOND, key=_since)",
        AS_OF,
    ),
    Mutant(
        "of two at one time whichever comes first decides",
        "join/as_of.py",
        "self.set_timer(tag, at=at + ms.MICROSECOND, hold=at)",
        "self.set_timer(tag, at=at, hold=at)",
        AS_OF,
    ),
    Mutant(
        "of two equally near the later counts", "join/as_of.py", "at + (at - back.since) - ms.MICROSECOND", "at + (at - back.since)", AS_OF
    ),
    Mutant(
        "a late record is joined with what is left of the history",
        "join/as_of.py",
        "case Left(value=value) if record.late or",
        "case Left(value=value) if",
        AS_OF,
    ),
    Mutant(
        "a record is joined though what stood then is forgotten",
        "join/as_of.py",
        " or (kept.versions and kept.versions[-1].since > at):",
        ":",
        TIMELESS,
    ),
    Mutant(
        "an old version stands last",
        "join/as_of.py",
        "kept.versions.insert(place, Version(at, change.after))",
        "kept.versions.append(Version(at, change.after))",
        TIMELESS,
    ),
    Mutant(
        "an old version is kept beside the newest",
        "join/as_of.py",
        "max(coming, newest, key=int)",
        "coming",
        TIMELESS,
    ),
    Mutant(
        "a deleted row is a version",
        "join/as_of.py",
        "if version.row is not None and version.since <= last:",
        "if version.since <= last:",
        AS_OF,
    ),
    Mutant("of versions at one time all are kept", "join/as_of.py", "del kept.versions[place]", "pass", AS_OF),
    Mutant(
        "the past of one that waits is forgotten",
        "join/as_of.py",
        "oldest = looking[0].at if looking else max(coming, newest, key=int)",
        "oldest = coming",
        AS_OF,
    ),
    Mutant("nothing is forgotten", "join/as_of.py", "        del versions[:first]\n", "", AS_OF),
    Mutant("a version that came is not looked at", "join/as_of.py", 'self._wake("come", at)', "pass", AS_OF),
    Mutant(
        "versions are thought to come first where nobody can say",
        "join/as_of.py",
        "self.versions_first &= _maker(stream) is not _maker(table)",
        "pass",
        AS_OF,
    ),
    Mutant(
        "records come before versions",
        "join/as_of.py",
        "return table.map(Right), stream.map(Left)",
        "return stream.map(Left), table.map(Right)",
        AS_OF,
    ),
    Mutant("records come as they arrive", "join/as_of.py", "    order = ms.Order.EVENT_TIME\n", "", AS_OF),
    # Tables.
    Mutant(
        "a view is dated by its record alone",
        "table/view.py",
        "date_of_change(record.timestamp, kept.since, self.low_watermark)",
        "record.timestamp",
        VIEW,
    ),
    Mutant("a row of a view that is gone is kept", "table/view.py", "forget(self, kept.since, since=kept.since)", "pass", VIEW),
    Mutant("a row of a view that came back is forgotten", "table/view.py", "            keep(self)\n", "            pass\n", VIEW),
    Mutant("a row may be changed in place", "table/view.py", "if _encode(before) != stood:", "if False:", VIEW),
    Mutant(
        "a row may be changed inside a new one",
        "table/view.py",
        "if _encode(before) != stood:",
        "if after is before and _encode(before) != stood:",
        VIEW,
    ),
    Mutant("a change may be late", "table/dating.py", "max(record, last, low_watermark, key=int)", "max(record, last, key=int)", NEWEST),
    Mutant(
        "a change may be older than the last",
        "table/dating.py",
        "max(record, last, low_watermark, key=int)",
        "max(record, low_watermark, key=int)",
        JOINED,
    ),
    Mutant("an older record replaces a newer one", "table/newest.py", "if at < kept.at:", "if False:", NEWEST),
    Mutant("of two at one time, the first counts", "table/newest.py", "if at < kept.at:", "if at <= kept.at:", NEWEST),
    Mutant("a deletion is forgotten at once", "table/newest.py", "forget(self, at + self.remember,", "forget(self, at,", NEWEST),
    Mutant("a row that came back is forgotten", "table/newest.py", "            keep(self)\n", "            pass\n", NEWEST),
    Mutant(
        "a row without event time is kept for ever",
        "table/dating.py",
        "    if table.low_watermark == ms.START_OF_TIME:\n",
        "    if False:\n",
        TIMELESS,
    ),
    Mutant(
        "the wall clock forgets what has event time",
        "table/dating.py",
        "timer.tag == BY_LOW_WATERMARK or table.low_watermark == ms.START_OF_TIME",
        "True",
        TIMELESS,
    ),
    Mutant(
        "what is forgotten is kept for a timer",
        "table/dating.py",
        "    if over:\n        keep(table)\n",
        "",
        TIMELESS,
    ),
    Mutant(
        "a row that is back is forgotten by the wall clock",
        "table/dating.py",
        "    table.cancel_timer(BY_WALL_CLOCK)\n",
        "",
        TIMELESS,
    ),
    Mutant("a deletion is remembered for good", "table/newest.py", "        del self.state\n", "        pass\n", NEWEST),
    Mutant(
        "an answer to an earlier question counts",
        "table/joined.py",
        "if kept.left is not None and kept.asked == asked:",
        "if kept.left is not None:",
        JOINED,
    ),
    Mutant("a row that moves stays where it pointed", "table/joined.py", "kept.pointing.pop(left, None)", "pass", JOINED),
    Mutant(
        "a row that moves is told before its answer",
        "table/joined.py",
        "kept.waits, kept.stood, kept.right = new is not None,",
        "kept.waits, kept.stood, kept.right = False,",
        JOINED,
    ),
    Mutant("a row is asked for under its old number", "table/joined.py", "max(kept.asked + 1, int(at))", "int(at)", JOINED),
    Mutant(
        "a row that refers to nothing takes the answer to its last question",
        "table/joined.py",
        "            kept.asked = max(kept.asked + 1, int(at))",
        "            kept.asked = max(kept.asked + (new is not None), int(at) if new is not None else 0)",
        JOINED,
    ),
    Mutant("an inner join has rows without a partner", "table/joined.py", "or self.kind is Kind.LEFT)", "or True)", JOINED),
    Mutant(
        "a change of the right row goes nowhere",
        "table/joined.py",
        "for left, asked in kept.pointing.items():",
        "for left, asked in ():",
        JOINED,
    ),
    Mutant("what is gone stays in the state", "table/joined.py", "            del self.state\n", "            pass\n", JOINED),
    Mutant(
        "a row that moves stays in its old group",
        "table/grouped.py",
        "if change.before is not None and self.group",
        "if False and self.group",
        GROUPED,
    ),
    Mutant(
        "a row is counted in both groups",
        "table/grouped.py",
        "if change.after is not None and self.group(change.after) == self.key:",
        "if change.after is not None:",
        GROUPED,
    ),
    Mutant(
        "an empty group is told as a row",
        "table/grouped.py",
        "self.aggregate.result(kept.so_far, ALWAYS) if kept.rows else None",
        "self.aggregate.result(kept.so_far, ALWAYS)",
        GROUPED,
    ),
    Mutant("an empty group is kept", "table/grouped.py", "forget(self, kept.since, since=kept.since)", "pass", GROUPED),
    Mutant("a group that filled again is forgotten", "table/grouped.py", "            keep(self)\n", "            pass\n", GROUPED),
    Mutant("what a group was told as changes with its rows", "table/grouped.py", "copy.deepcopy(after)", "after", GROUPED),
    Mutant("a group that comes back as plain types has changed", "table/grouped.py", " and encode(after) != encode(before):", ":", GROUPED),
    Mutant("a group keeps what cannot be read back", "table/grouped.py", "        if self._checks:\n", "        if False:\n", GROUPED),
    Mutant(
        "a change goes to the group that is entered only",
        "table/grouped.py",
        "for row in (change.before, change.after)",
        "for row in (change.after or change.before,)",
        GROUPED,
    ),
    Mutant("parts of a key run together", "change.py", "json.dumps(parts,", "json.dumps(''.join(map(str, parts)),", CHANGE),
]
