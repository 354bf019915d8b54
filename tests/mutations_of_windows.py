"""Ways for aggregates and windows to be wrong, each with the tests that must notice."""

from __future__ import annotations

from tests.mutations import Mutant

AGGREGATES = "tests/operators/test_aggregates.py"
WINDOW = "tests/operators/test_window.py"
TABLE = "tests/operators/test_window_table.py"
SPLITS = "tests/operators/test_window_splits.py"
STATE = "tests/operators/test_window_state.py"
SPANS = "tests/operators/test_window_spans.py"
ROLLING = "tests/operators/test_window_rolling.py"
COMPARE = "tests/operators/test_window_compare.py"
ERRORS = "tests/operators/test_window_errors.py"
SKETCHES = "tests/operators/test_sketches.py"

WINDOWS = [
    # Aggregates.
    Mutant(
        "forget what rounding leaves over in a sum",
        "aggregate/exact.py",
        "        if low:\n            parts[kept] = low\n            kept += 1\n",
        "",
        AGGREGATES,
    ),
    Mutant("text is a number", "aggregate/exact.py", "if number.__class__ is not float and", "if False and", AGGREGATES),
    Mutant(
        "a decimal that is no number is added",
        "aggregate/numbers.py",
        'leave the type out to add floats")\n        exact.check_finite(found)\n',
        'leave the type out to add floats")\n',
        AGGREGATES,
    ),
    Mutant("forget what rounding leaves over in a square", "aggregate/exact.py", "    if rest:\n", "    if False:\n", AGGREGATES),
    Mutant("take an older value for the last", "aggregate/values.py", "else at >= so_far[0].at", "else True", AGGREGATES),
    Mutant("the order of arrival is that of collect", "aggregate/values.py", "sorted(so_far, key=_by_time)", "so_far", AGGREGATES),
    Mutant("load at every use", "aggregate/live.py", "return so_far if so_far.__class__ is Live else", "return", AGGREGATES),
    Mutant(
        "estimate by the order, too",
        "sketch/sketches.py",
        "_united(so_far, so_far)",
        "_united(so_far)",
        SKETCHES,
    ),
    Mutant("forget all hashes but one", "sketch/membership.py", "(first + number * step)", "(first + number * 0)", SKETCHES),
    # Spans.
    Mutant(
        "every day has 24 hours",
        "window/spans.py",
        "self._midnight(day + timedelta(days=1))",
        "self._midnight(day) + 86_400_000_000",
        SPANS,
    ),
    Mutant(
        "forget the offset",
        "window/spans.py",
        "start = floor(at - self.offset, self.size) + self.offset",
        "start = floor(at, self.size)",
        SPANS,
    ),
    # Window.
    Mutant("count what came after the end", "window/window.py", "        if self._is_done(pane):\n            return False\n", "", WINDOW),
    Mutant(
        "drop a record silently that some of its windows missed",
        "window/window.py",
        "        return self._is_whole(pane)\n\n    def _take_session",
        "        return True\n\n    def _take_session",
        WINDOW,
    ),
    Mutant(
        "sessions join over the gap itself",
        "window/window.py",
        "pane.start < span.end and span.start < pane.end]",
        "pane.start <= span.end and span.start <= pane.end]",
        WINDOW,
    ),
    Mutant(
        "a session forgets those that it joins",
        "window/window.py",
        "            home.so_far = self.aggregate.merge(home.so_far, other.so_far)\n",
        "",
        WINDOW,
    ),
    Mutant("what patience told is told again", "window/window.py", "                state.told.append(window)\n", "", WINDOW),
    Mutant(
        "patience is for the key, not for the window",
        "window/window.py",
        "            pane.heard = self.now\n",
        "            for pane in self.state.panes:\n                pane.heard = self.now\n",
        WINDOW,
    ),
    Mutant("fill for ever", "window/window.py", "if end <= since + fill and", "if end <= since + 2 * fill and", WINDOW),
    Mutant("fill goes on from an empty window", "window/window.py", "since = last.empty_since or last.end", "since = last.end", WINDOW),
    Mutant("tell without a hold", "window/window.py", "at=at, hold=at - LAST_INSTANT)", "at=at)", SPLITS),
    Mutant("a pane outlives its windows", "window/window.py", "if pane.last_end() > low_watermark]", "]", STATE),
    Mutant(
        "a hop too few",
        "window/kept.py",
        "min(self.hops - 1, (until - self.end) // length) + 1",
        "min(self.hops - 1, (until - self.end) // length)",
        WINDOW,
    ),
    Mutant(
        "other windows take over what is open",
        "window/window.py",
        "                if pane.start <= at < pane.end and pane.hops:\n",
        "                if pane.start <= at < pane.end:\n",
        f"{WINDOW} {STATE}",
    ),
    Mutant(
        "any aggregate may read what another kept", "window/kept.py", "        if state.mark != self.mark:\n", "        if False:\n", STATE
    ),
    Mutant("keep what cannot be read back", "window/kept.py", "        if self._checks:\n", "        if False:\n", STATE),
    Mutant(
        "a record in no window is dropped silently",
        "window/window.py",
        "if not counted or not all(counted):",
        "if not all(counted):",
        WINDOW,
    ),
    # Windows that cannot be told.
    Mutant(
        "one that cannot be told undoes the others",
        "window/window.py",
        "        except Exception:\n            self.state.untold",
        "        except ArithmeticError:\n            self.state.untold",
        ERRORS,
    ),
    Mutant(
        "one that cannot be told is dropped silently",
        "window/window.py",
        "            self._wait_for_untold()\n\n    def _produce",
        "            self.state.untold = []\n\n    def _produce",
        ERRORS,
    ),
    Mutant(
        "of several that cannot be told one is named",
        "window/window.py",
        "        self.cancel_timer(SKIP)\n        if self.state.untold:\n",
        "        self.cancel_timer(SKIP)\n        self.state.untold = []\n        if self.state.untold:\n",
        ERRORS,
    ),
    Mutant("one that cannot be told is skipped at once", "window/kept.py", 'SKIP = "tell no more"', 'SKIP = "skip"', ERRORS),
    Mutant(
        "a row that cannot be told undoes the others",
        "window/table.py",
        "        except Exception:\n            self.state.untold",
        "        except ArithmeticError:\n            self.state.untold",
        ERRORS,
    ),
    Mutant(
        "a row that cannot be told is tried for ever",
        "window/table.py",
        "        if timer.tag == SKIP:\n            row.changed = False\n",
        "        if timer.tag == SKIP:\n            pass\n",
        ERRORS,
    ),
    # Tables.
    Mutant("a correction carries the time of its window", "window/table.py", "max(row.at, at, low_watermark, key=int)", "row.at", TABLE),
    Mutant(
        "a correction is dated before its record",
        "window/table.py",
        "max(row.at, at, low_watermark, key=int)",
        "max(row.at, low_watermark, key=int)",
        f"{SPLITS} {TABLE}",
    ),
    Mutant(
        "a session begins again where one was forgotten",
        "window/table.py",
        "if not any(pane.start <= span.start for pane in near) and",
        "if not near and",
        SPLITS,
    ),
    Mutant(
        "a session takes nothing whose own span is over",
        "window/table.py",
        "if not any(pane.start <= span.start for pane in near) and",
        "if",
        f"{TABLE} {SPLITS}",
    ),
    Mutant("two rows may begin at one time", "window/table.py", "            if row.start in taken:\n", "            if False:\n", TABLE),
    Mutant(
        "changes of a row go back in time",
        "window/table.py",
        "        row.at = max(at, row.at, key=int)\n",
        "        row.at = at\n",
        f"{TABLE} {SPLITS}",
    ),
    Mutant("an absorbed session leaves its row", "window/table.py", "                corrected |= self._delete(other, at)\n", "", TABLE),
    Mutant("an absorbed session waits to be told", "window/table.py", "        if corrected or row.end", "        if row.end", TABLE),
    Mutant("tell what has not changed", "window/table.py", "(before != after and encode(before) != encode(after))", "True", TABLE),
    Mutant("tell what comes back as plain types", "window/table.py", " and encode(before) != encode(after))", ")", TABLE),
    Mutant("correct for ever", "window/table.py", "row.end + self.correct > low_watermark]", "True]", f"{TABLE} {STATE}"),
    Mutant("what was told changes with what comes", "window/table.py", "copy.deepcopy(value)", "value", TABLE),
    Mutant(
        "an early value before all that came",
        "window/table.py",
        "max(self.low_watermark, at, key=int)",
        "self.low_watermark",
        f"{TABLE} {SPLITS}",
    ),
    Mutant(
        "a session that opens again is not waited for", "window/table.py", "            if was_over:\n", "            if False:\n", TABLE
    ),
    # Rolling, Compare.
    Mutant("what lies just outside counts", "window/rolling.py", "if one.at > until)", "if one.at >= until)", ROLLING),
    Mutant(
        "what has left is not taken out",
        "window/rolling.py",
        "            for one in state.records[:gone]:\n",
        "            for one in ():\n",
        ROLLING,
    ),
    Mutant("late records roll too", "window/rolling.py", "if record.late or (", "if (", ROLLING),
    Mutant(
        "records without event time roll in any order",
        "window/rolling.py",
        "if record.late or (self.state.records and at < self.state.records[-1].at):",
        "if record.late:",
        "tests/operators/test_timeless.py",
    ),
    Mutant(
        "a window is told before the earlier one may have come",
        "window/compare.py",
        "if not one.told and one.at < self.low_watermark:",
        "if not one.told:",
        COMPARE,
    ),
    Mutant(
        "a late window is compared with what is left",
        "window/compare.py",
        "if record.timestamp < self.low_watermark:",
        "if False:",
        COMPARE,
    ),
    Mutant("windows of another key are earlier ones", "window/compare.py", "other.window.key == window.key and ", "", COMPARE),
    Mutant(
        "forget a window too early",
        "window/compare.py",
        "one.window.end + self.back > self.low_watermark]",
        "one.window.end > self.low_watermark]",
        COMPARE,
    ),
]
