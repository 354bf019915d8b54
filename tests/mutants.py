"""`make mutants`: break the product on purpose in named places, and show which test turns red for each.

Every mutant is a copy of the source with one change; the tests named for it run against the copy. One that no test
notices fails the run.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Mutant:
    """One way to be wrong."""

    name: str
    file: str
    old: str
    new: str
    tests: str


PLANNER = "tests/spark/test_planner.py"
COMMITS = "tests/spark/test_commits.py"
KEEPER = "tests/log/test_maintenance.py"
TABLE = "tests/log/test_table.py"
SCENES = "tests/conformance"
MUTANTS = [
    Mutant(
        "publish before the epoch is final",
        "spark/planner.py",
        "if ledger.plan.epoch == start.epoch - 1:\n            manifest = find_manifest(self._folder, start.epoch)",
        "if find_manifest(self._folder, ledger.plan.epoch + 1):\n            manifest = find_manifest(self._folder, ledger.plan.epoch + 1)",
        PLANNER,
    ),
    Mutant("publish an old manifest", "spark/planner.py", "read_json(found[-1], Manifest)", "read_json(found[0], Manifest)", PLANNER),
    Mutant(
        "drop the fence check",
        "log/table.py",
        "if (handle.transaction_version(FENCE) or 0) != self._fence:",
        "if False:",
        "tests/log/test_table.py " + PLANNER,
    ),
    Mutant(
        "do not assert the fence in the commit",
        "log/table.py",
        "writers={FENCE: self._fence, **writers}",
        "writers=writers",
        "tests/log/test_table.py",
    ),
    Mutant(
        "forget the records delivered in this epoch in the output low watermark",
        "core/low_watermark.py",
        "lowered = min(inputs[name], known.delivered, known.held)",
        "lowered = min(inputs[name], known.held)",
        "tests/core/test_low_watermark.py",
    ),
    Mutant(
        "forget the holds in the output low watermark",
        "core/low_watermark.py",
        "lowered = min(inputs[name], known.delivered, known.held)",
        "lowered = min(inputs[name], known.delivered)",
        SCENES,
    ),
    Mutant("forget what stays in the log", "core/plan.py", "undelivered=min(", "undelivered=END_OF_TIME or min(", PLANNER),
    Mutant(
        "fire timers before records",
        "core/turn.py",
        "        for position in positions:\n            self._receive(position)\n        if self._overdue:\n"
        '            own["low_watermark"] = self._low_watermark\n            self._fire()\n',
        '        if self._overdue:\n            own["low_watermark"] = self._low_watermark\n            self._fire()\n'
        "        for position in positions:\n            self._receive(position)\n        if self._overdue:\n            self._fire()\n",
        "tests/core/test_order.py",
    ),
    Mutant("fire timers out of order", "core/turn.py", "key=_by_time)", "key=lambda pending: -pending.at)", SCENES),
    Mutant(
        "fire a timer and keep it", "core/turn.py", "                del self._timers[pending.tag]\n", "", "tests/core/test_timers.py -x"
    ),
    Mutant(
        "forget the monotone guard",
        "core/low_watermark.py",
        "return max(current, min(bounds",
        "return min(min(bounds",
        "tests/core/test_low_watermark.py",
    ),
    Mutant(
        "forget to write a row",
        "core/mill.py",
        "if after is not before:\n                        pages.put(",
        "if before is None:\n                        pages.put(",
        SCENES,
    ),
    Mutant(
        "late against the wrong epoch",
        "core/turn.py",
        "late = timestamp < self._before",
        "late = timestamp < self._low_watermark",
        "tests/core/test_late.py",
    ),
    Mutant(
        "call a record at the low watermark late",
        "core/turn.py",
        "late = timestamp < self._before",
        "late = timestamp <= self._before",
        SCENES,
    ),
    Mutant(
        "ignore idle partitions",
        "core/low_watermark.py",
        "return idle_after is not None and now - mark.heard > idle_after",
        "return False",
        "tests/core/test_low_watermark.py",
    ),
    Mutant(
        "believe the fastest partition",
        "core/low_watermark.py",
        "min((mark.complete for mark in active)",
        "max((mark.complete for mark in active)",
        "tests/core/test_low_watermark.py",
    ),
    Mutant("keep what a failed record did", "core/turn.py", "        self._productions.cut(produced)\n", "", SCENES),
    Mutant("let the clock go back", "core/plan.py", "now = max(last.now, clock)", "now = clock", PLANNER),
    Mutant(
        "lose a row when a page is split",
        "core/pages.py",
        "        self._cache[new] = moved\n",
        "        self._cache[new] = {}\n",
        "tests/core/test_pages.py",
    ),
    Mutant(
        "forget when entries expire",
        "core/row.py",
        "Row(state, minima=Minima(expires))",
        "Row(state)",
        "tests/core/test_expiry.py",
    ),
    Mutant(
        "deliver records in any order", "spark/wire.py", "whole = whole.take(pa.array(order))", "order = np.arange(len(order))", COMMITS
    ),
    Mutant(
        "take a commit whole that an epoch took half of",
        "spark/planner.py",
        "[f for f in first.files if f.position >= position]",
        "first.files",
        PLANNER,
    ),
    Mutant(
        "replay an epoch with the whole of its last commit",
        "spark/planner.py",
        "found += [file for file in commit.files if",
        "found += [file for file in read_commit(self._folder.table(table), table, commit.version).files if",
        PLANNER,
    ),
    Mutant(
        "forget at a start what a source had said",
        "spark/planner.py",
        "self._sources[injector] = self._source_before(path, table, position.version)",
        "pass",
        PLANNER,
    ),
    Mutant("inject a repeated epoch again", "spark/inject.py", "if table.committed(settings.injector) >= epoch:", "if False:", COMMITS),
    Mutant(
        "deliver a repeated epoch again", "spark/targets.py", "(done is not None and done >= batchId) or not files", "not files", COMMITS
    ),
    Mutant("leave a manifest of a run that was overtaken", "spark/mill.py", "                path.unlink()\n", "", COMMITS),
    Mutant(
        "spool values for a run that was overtaken",
        "spark/spool.py",
        "            self._owned()  # a run",
        "            pass  # a run",
        COMMITS,
    ),
    Mutant(
        "delete a file that the table names", "log/maintenance.py", "            if file not in live:\n", "            if True:\n", KEEPER
    ),
    Mutant(
        "merge what a reader has still to read",
        "log/maintenance.py",
        "return 0 if any(table not in reached.get(reader, {}) for reader in readers) else min(versions, default=0)",
        "return max(versions, default=0)",
        KEEPER,
    ),
    Mutant(
        "believe a commit whatever its checksum",
        "log/table.py",
        "!= wanted:  # there is none",
        "!= wanted and False:  # there is none",
        TABLE,
    ),
    Mutant(
        "deliver records of one time in the order of their ids as text",
        "spark/deliver.py",
        'pc.struct_field(parts, "sequence").cast(pa.int64())',
        'pc.struct_field(parts, "sequence")',
        COMMITS,
    ),
]


def sound() -> None:
    """Without any mutant, all the tests that are named must be green: else being red would mean nothing."""
    found = _run(ROOT / "src", sorted({word for mutant in MUTANTS for word in mutant.tests.split() if word != "-x"}))
    if found.returncode != 0:
        raise SystemExit(f"the tests are red without any mutant:\n{found.stdout[-3000:]}")


def play(mutant: Mutant) -> str | None:
    """The first test that notices; None if none does."""
    with tempfile.TemporaryDirectory(prefix="millstream-mutant-") as folder:
        source = Path(folder) / "millstream"
        shutil.copytree(ROOT / "src" / "millstream", source, ignore=shutil.ignore_patterns("__pycache__"))
        path = source / mutant.file
        text = path.read_text()
        if text.count(mutant.old) != 1:
            raise SystemExit(f"{mutant.name}: {mutant.file} has {text.count(mutant.old)} places that look like\n{mutant.old}")
        path.write_text(text.replace(mutant.old, mutant.new))
        found = _run(Path(folder), mutant.tests.split())
    red = re.search(r"^FAILED (\S+)", found.stdout, re.MULTILINE)
    return red.group(1) if found.returncode == 1 and red else None


def _run(source: Path, tests: list[str]) -> subprocess.CompletedProcess[str]:
    """The tests against the package that lies in `source`; one that hangs is red too."""
    options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:randomly", "-o", "timeout=60", "-m", "not spark"]
    environment = {**os.environ, "PYTHONPATH": str(source)}
    command = [sys.executable, "-m", "pytest", *options, *tests]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=600)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("only", nargs="?", default="", help="mutants whose name has this in it")
    wanted = [mutant for mutant in MUTANTS if parser.parse_args().only in mutant.name]
    sound()
    survivors = 0
    for mutant in wanted:
        red = play(mutant)
        survivors += red is None
        print(f"{'SURVIVED' if red is None else 'caught'}: {mutant.name}" + (f" — {red}" if red else ""), flush=True)
    print(f"{len(wanted) - survivors} of {len(wanted)} mutants caught")
    raise SystemExit(1 if survivors else 0)


if __name__ == "__main__":
    main()
