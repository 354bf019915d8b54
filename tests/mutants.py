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
from pathlib import Path

from tests.mutations import CORE, Mutant
from tests.mutations_of_clocks import CLOCKS
from tests.mutations_of_edges import EDGES
from tests.mutations_of_histories import HISTORIES
from tests.mutations_of_operators import OPERATORS
from tests.mutations_of_order import ORDER
from tests.mutations_of_rows import ROWS
from tests.mutations_of_types import TYPES
from tests.mutations_of_windows import WINDOWS

ROOT = Path(__file__).parent.parent

MUTANTS = [*CORE, *CLOCKS, *EDGES, *TYPES, *ORDER, *HISTORIES, *OPERATORS, *WINDOWS, *ROWS]


def sound() -> None:
    """Without any mutant, all the tests that are named must be green: else being red would mean nothing."""
    found = _run(ROOT / "src", sorted({word for mutant in MUTANTS for word in mutant.tests.split()}))
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
