"""Ways to be wrong about the order of event time."""

from __future__ import annotations

from tests.mutations import Mutant

ORDERED = "tests/core/test_ordered.py"
TIMELINE = "tests/core/test_timeline.py"
OWN_KEYS = "tests/core/test_records_of_streams.py"

ORDER = [
    # The sequence.
    Mutant(
        "let a stored record come with its own time, when others of that time may still come",
        "core/waiting.py",
        "time + int(MICROSECOND), END, time",
        "time, END, time",
        ORDERED,
    ),
    Mutant(
        "let an arrival come with its own time",
        "core/ordered.py",
        "if past or timestamp < self._low_watermark:",
        "if past or timestamp <= self._low_watermark:",
        ORDERED,
    ),
    Mutant(
        "fire a timer after the records of its time",
        "core/ordered.py",
        "if self._earliest <= timestamp:",
        "if self._earliest < timestamp:",
        ORDERED,
    ),
    Mutant(
        "forget timers that records set between them",
        "core/ordered.py",
        "        self._earliest = min(self._earliest, cast(int, at))\n",
        "",
        ORDERED,
    ),
    Mutant("take what waited before what came", "core/ordered.py", "        due.sort(key=_in_order)\n", "", ORDERED),
    Mutant("order by time alone", "core/ordered.py", "    return record[:6]\n", "    return record[:1]\n", ORDERED),
    Mutant(
        "show the low watermark of the epoch, above records that still come",
        "core/ordered.py",
        "ahead.append(ahead[-1] if record.past else record.timestamp)",
        "ahead.append(ahead[-1])",
        ORDERED,
    ),
    Mutant(
        "let entries expire by the epoch",
        "core/ordered.py",
        "                self._expire(expiry, timestamp)\n",
        "                pass\n",
        ORDERED,
    ),
    Mutant(
        "let a timer see entries by the epoch",
        "core/ordered.py",
        "            self._expire(self._expiry, pending.at - MICROSECOND)",
        "            pass",
        ORDERED,
    ),
    Mutant(
        "fire all timers that are due before a record",
        "core/ordered.py",
        "                self._fire(timestamp)\n",
        "                self._fire()\n",
        ORDERED,
    ),
    Mutant("refuse no cycle", "core/graph.py", "if plan.on_cycle and plan.in_event_time:", "if False:", ORDERED),
    # What waits.
    Mutant("lose what has to wait", "core/mill.py", "            waiting.add(key, turn.put_off)\n", "", ORDERED),
    Mutant(
        "leave out keys of which only something has waited",
        "core/mill.py",
        "sorted({*waited, *due} - of_key.keys())",
        "sorted({*due} - of_key.keys())",
        ORDERED,
    ),
    Mutant(
        "report no record that waits as due, nor as held",
        "core/waiting.py",
        "least([of_keys.minima, mine.minima])",
        "of_keys.minima",
        ORDERED,
    ),
    Mutant(
        "report records that wait as due, and not as held",
        "core/waiting.py",
        "least([of_keys.minima, mine.minima])",
        "type(mine.minima)(least([of_keys.minima, mine.minima]).low_watermark, of_keys.minima.wall, of_keys.minima.hold)",
        ORDERED,
    ),
    Mutant("count no record that waits", "core/waiting.py", "of_keys.timers, mine.rows)", "of_keys.timers)", ORDERED),
    Mutant(
        "take some of many and go on as if it were all",
        "core/mill.py",
        "                    turn.reach(low_watermark)\n",
        "                    turn.reach(header.low_watermarks[name].input)\n",
        ORDERED,
    ),
    Mutant(
        "take none of many that are of one time",
        "core/waiting.py",
        "first_left - 1 if first < first_left else first_left",
        "first_left - 1",
        ORDERED,
    ),
    Mutant(
        "lose records of a stream that is read no more",
        "core/ordered.py",
        "                tally.dropped += 1\n",
        "                pass\n",
        ORDERED,
    ),
    Mutant(
        "forget the own key of a record that waits",
        "core/ordered.py",
        "minor, reading.place, value, own))",
        "minor, reading.place, value))",
        OWN_KEYS,
    ),
    Mutant(
        "take an own key that is empty for none",
        "core/waiting.py",
        'if own is None else f"{len(origin)}+',
        'if not own else f"{len(origin)}+',
        OWN_KEYS,
    ),
    Mutant(
        "begin without the order, though records wait",
        "mill/beginning.py",
        "if waiting and not node.in_event_time:",
        "if False:",
        "tests/mill/test_beginning.py",
    ),
    # Their pages.
    Mutant(
        "leave an empty page in the store",
        "core/timeline.py",
        '            self._store.remove(f"{self._prefix}p{number}")\n',
        "            pass\n",
        TIMELINE,
    ),
    Mutant("forget where pages begin", "core/timeline.py", 'self._store.put(f"{self._prefix}b", _encode(self._bounds))', "pass", TIMELINE),
    Mutant("leave where pages began", "core/timeline.py", 'self._store.remove(f"{self._prefix}b")', "pass", TIMELINE),
    Mutant(
        "lose the beginning of time with its page",
        "core/timeline.py",
        "            self._bounds[0] = (*FIRST, self._bounds[0][2])\n",
        "            pass\n",
        TIMELINE,
    ),
    Mutant("lose half of a page that is split", "core/timeline.py", "= stay, go\n", "= stay, {}\n", TIMELINE),
    Mutant("forget the minima of a page that is empty", "core/timeline.py", "        self.minima.put(number, NO_MINIMA)\n", "", TIMELINE),
    Mutant(
        "leave the minima of a page from which rows were taken",
        "core/timeline.py",
        "                self.minima.put(number, least_of(page.values()))\n",
        "",
        TIMELINE,
    ),
    Mutant("tell nobody of rows that were taken", "core/timeline.py", "        self._changed[address] = None\n", "", TIMELINE),
    Mutant("keep a large row that was taken", "core/timeline.py", "            self.apart.remove(address)\n", "", TIMELINE),
    Mutant(
        "use the number of a page twice", "core/timeline.py", "self._free.pop() if self._free", "self._free[-1] if self._free", TIMELINE
    ),
    Mutant(
        "begin anew though the last page was let go",
        "core/timeline.py",
        "            self._load(number)  # it may have been let go already\n",
        "            pass\n",
        TIMELINE,
    ),
]
