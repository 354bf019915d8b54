"""Ways to be wrong, each with the tests that must notice; `make mutants` plays them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """One way to be wrong."""

    name: str
    file: str
    old: str
    new: str
    tests: str


SCENES = "tests/conformance"
LOW_WATERMARK = "tests/core/test_low_watermark.py"
PLANNING = "tests/core/test_planning.py"
BACKLOG = "tests/core/test_backlog.py"
LEDGER = "tests/core/test_ledger.py"
DEALING = "tests/core/test_dealing.py"
OWN_KEYS = "tests/core/test_records_of_streams.py"
ROWS = "tests/core/test_rows.py"
PAGES = "tests/core/test_pages.py tests/core/test_round_trips.py"
HELD = "tests/mill/test_held.py"
RECOVERY = "tests/core/test_recovery.py"

CORE = [
    # Low watermarks.
    Mutant(
        "forget the records delivered in this epoch in the output low watermark",
        "core/low_watermark.py",
        "lowered = min(inputs[name], known.delivered, known.held)",
        "lowered = min(inputs[name], known.held)",
        LOW_WATERMARK,
    ),
    Mutant(
        "forget the holds in the output low watermark",
        "core/low_watermark.py",
        "lowered = min(inputs[name], known.delivered, known.held)",
        "lowered = min(inputs[name], known.delivered)",
        SCENES,
    ),
    Mutant(
        "forget the monotone guard",
        "core/low_watermark.py",
        "return max(current, min(bounds",
        "return min(min(bounds",
        LOW_WATERMARK,
    ),
    Mutant(
        "ignore idle partitions",
        "core/low_watermark.py",
        "return idle_after is not None and now - mark.heard > idle_after",
        "return False",
        LOW_WATERMARK,
    ),
    Mutant(
        "believe the fastest partition",
        "core/low_watermark.py",
        "min((mark.complete for mark in active)",
        "max((mark.complete for mark in active)",
        LOW_WATERMARK,
    ),
    Mutant(
        "leave low watermarks behind a changed one as they were",
        "core/low_watermark.py",
        "            changed += behind\n",
        "            break\n",
        LOW_WATERMARK,
    ),
    Mutant(
        "take low watermarks of an epoch that was not committed as known",
        "core/low_watermark.py",
        "for name in {**dict.fromkeys(self._ahead), **bounds}",
        "for name in bounds",
        LOW_WATERMARK,
    ),
    Mutant("take a mark back", "core/planning.py", "upto if old is None else advance(old.complete, upto)", "upto", LOW_WATERMARK),
    # Planning.
    Mutant(
        "forget what waits",
        "core/low_watermark.py",
        "undelivered=known.undelivered.get(name, END_OF_TIME)",
        "undelivered=END_OF_TIME",
        PLANNING,
    ),
    Mutant("let the clock go back", "core/planning.py", "now = max(ledger.now, clock)", "now = clock", PLANNING),
    Mutant("give parts to a lane that is away", "core/planning.py", "if place[0] in here and", "if", PLANNING),
    Mutant(
        "plan timers of a lane that is away",
        "core/standing.py",
        " and lanes.of_bucket[b] in here]",
        "]",
        PLANNING,
    ),
    Mutant(
        "tell the end of the input again and again",
        "core/planning.py",
        "over = ended(low_watermarks) and bool(moved)",
        "over = ended(low_watermarks)",
        PLANNING,
    ),
    Mutant(
        "let new input in before what is under way",
        "core/planning.py",
        "return self.injected, 0 if self.injected",
        "return not self.injected, 0 if self.injected",
        BACKLOG,
    ),
    Mutant(
        "take one part too many",
        "core/planning.py",
        "if taken and (records + part.records > limits.records",
        "if taken and (records > limits.records",
        BACKLOG,
    ),
    Mutant(
        "put what an aborted epoch took behind what came later", "core/planning.py", "in (*again, *behind)", "in (*behind, *again)", BACKLOG
    ),
    Mutant(
        "forget the oldest when it is taken",
        "core/planning.py",
        "while self.falling and self.falling[-1].part.oldest >= oldest:",
        "while self.falling:",
        BACKLOG,
    ),
    Mutant(
        "give a reader what was before it",
        "core/planning.py",
        "Reader(read.stream, read.rekeyed, since)",
        "Reader(read.stream, read.rekeyed, 0)",
        PLANNING,
    ),
    # The ledger.
    Mutant(
        "take a part twice",
        "core/ledger.py",
        "            del waiting[offset]\n",
        "            waiting.pop(offset, None)\n",
        LEDGER,
    ),
    Mutant(
        "count what is injected as produced",
        "core/ledger.py",
        "                if part.stream not in self.sources:\n",
        "                if True:\n",
        LEDGER,
    ),
    Mutant(
        "let parts wait for a reader that is gone", "core/ledger.py", "            self._drop_unawaited()\n", "            pass\n", LEDGER
    ),
    Mutant(
        "keep the records of before for a reader that came later",
        "core/ledger.py",
        "return since is not None and since <= number",
        "return since is not None",
        LEDGER,
    ),
    Mutant(
        "forget what untouched buckets said",
        "core/ledger.py",
        "self.reports.setdefault(name, {})[summary.bucket] = report",
        "self.reports[name] = {summary.bucket: report}",
        LEDGER,
    ),
    Mutant("free the rows of the newest checkpoint", "core/ledger.py", "checkpoint.before.epoch)", "checkpoint.at.epoch)", LEDGER),
    Mutant(
        "forget the first of two changes of a source",
        "core/ledger.py",
        "injected=earlier.injected + self.injected",
        "injected=self.injected",
        LEDGER,
    ),
    Mutant(
        "forget a partition that came back",
        "core/ledger.py",
        "(p for p in earlier.forgotten if p not in self.marks)",
        "earlier.forgotten",
        LEDGER,
    ),
    # To the lanes, and into an epoch.
    Mutant(
        "deal to the lane of the record's own key",
        "core/route.py",
        "split = self._split(keyed.keys, keyed)",
        "split = self._split(columns.keys, keyed)",
        DEALING,
    ),
    Mutant(
        "lose why a key cannot be extracted",
        "core/route.py",
        "errors = {new: errors[old] for new, old in enumerate(places) if old in errors}",
        "errors = {}",
        DEALING,
    ),
    Mutant(
        "show a reader the key it has a record under as the record's own",
        "core/route.py",
        "had = columns.keys if self.read.shows_records else []",
        "had = []",
        OWN_KEYS,
    ),
    Mutant(
        "give the own keys of records to others that are dealt with them",
        "core/route.py",
        "had = [had[n] for n in places] if had else []",
        "had = [had[n % len(had)] for n in range(len(places))] if had else []",
        OWN_KEYS,
    ),
    Mutant(
        "leave own keys where they were when records are put in order",
        "core/arrivals.py",
        "pick(arrivals.own) if arrivals.own else []",
        "arrivals.own",
        OWN_KEYS,
    ),
    Mutant("put own keys together without those that need none", "core/arrivals.py", "+= c.own or c.keys", "+= c.own", OWN_KEYS),
    Mutant(
        "let injectors come before productions",
        "core/arrivals.py",
        'return origin if injector_of(origin) in injectors else ""',
        'return "" if injector_of(origin) in injectors else origin',
        ROWS,
    ),
    Mutant(
        "bring records in the order of their ids alone",
        "core/arrivals.py",
        "if order is not None or not _ascending(arrivals.timestamps):",
        "if order is not None:",
        ROWS,
    ),
    Mutant(
        "forget to write a row",
        "core/mill.py",
        "            if after is not before:\n                put(key, before, after)\n        for key in due:",
        "            if before is None:\n                put(key, before, after)\n        for key in due:",
        SCENES,
    ),
    Mutant(
        "number productions by stream",
        "core/productions.py",
        "made.minors.append(minor)",
        "made.minors.append(bucket << BUCKET_SHIFT | len(made.minors))",
        ROWS,
    ),
    # A turn.
    Mutant(
        "fire timers before records",
        "core/turn.py",
        '        own["low_watermark"] = self._before\n        if not self._plain:\n',
        '        own["low_watermark"] = self._low_watermark\n        self._overdue and self._fire()\n        if not self._plain:\n',
        "tests/core/test_order.py",
    ),
    Mutant("fire timers out of order", "core/turn.py", "key=_by_time)", "key=lambda pending: -pending.at)", SCENES),
    Mutant("fire a timer and keep it", "core/turn.py", "                del self._timers[pending.tag]\n", "", "tests/core/test_timers.py"),
    Mutant(
        "late against the wrong epoch",
        "core/turn.py",
        "                is_late = timestamp < before\n",
        "                is_late = timestamp < self._low_watermark\n",
        "tests/core/test_late.py",
    ),
    Mutant(
        "call a record at the low watermark late",
        "core/turn.py",
        "                is_late = timestamp < before\n",
        "                is_late = timestamp <= before\n",
        SCENES,
    ),
    Mutant(
        "drop a record at the low watermark",
        "core/turn.py",
        "        late = timestamp < self._late_below[arrivals.packet_of[position]]\n",
        "        late = timestamp <= self._late_below[arrivals.packet_of[position]]\n",
        "tests/core/test_late.py",
    ),
    Mutant("keep what a failed record did", "core/turn.py", "        self._productions.cut(produced)\n", "", SCENES),
    # Rows.
    Mutant(
        "lose a row when a page is split",
        "core/pages.py",
        "self.decoded[old], self.decoded[new] = stay, go",
        "self.decoded[old], self.decoded[new] = stay, {}",
        PAGES,
    ),
    Mutant("forget the pages that a merge emptied", "core/pages.py", "self.dirty |= {into, last}", "self.dirty |= {into}", PAGES),
    Mutant(
        "forget when entries expire",
        "core/row.py",
        "return Row(state, None, 0, expires, END, END)",
        "return Row(state, None, 0, END, END, END)",
        "tests/core/test_expiry.py",
    ),
    Mutant(
        "forget a hold",
        "core/row.py",
        "if held is not None and held < hold:",
        "if held is not None and held < hold and False:",
        "tests/core/test_holds.py",
    ),
    Mutant(
        "redo the first image of a row and not the last",
        "mill/held.py",
        "into.setdefault(computation, {}).update(of_key)",
        "into[computation] = {**of_key, **into.get(computation, {})}",
        HELD,
    ),
    Mutant(
        "keep what was held of a failed epoch",
        "mill/held.py",
        "        self._pages, self._touched = {}, {}\n        self._room",
        "        self._touched = {}\n        self._room",
        f"{RECOVERY} {HELD}",
    ),
    # The driver of tests.
    Mutant("recover without redo", "testing/run.py", "        self.held.redo(", "        list(", RECOVERY),
    Mutant(
        "let what a crash took go",
        "testing/run.py",
        "        self._checkpoint()\n        self._begin()\n",
        "        self._checkpoint()\n",
        RECOVERY,
    ),
    Mutant(
        "show what is not committed",
        "testing/run.py",
        "            self._fed.append(frame)\n",
        "            self._fed.append(frame)\n            self.log[stream] += records\n",
        RECOVERY,
    ),
    Mutant(
        "wait for ever for what came from outside",
        "testing/run.py",
        "always=always or bool(self._fed or self._changes)",
        "always=always",
        "tests/core/test_driver.py",
    ),
]
