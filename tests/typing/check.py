"""Both type checkers accept the examples and refuse every marked line of `wrong*.py`; a mark that is not needed is an error too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
EXAMPLES = [path for path in sorted((ROOT / "examples").rglob("*.py")) if path.name != "__main__.py"]
WRONG = sorted(HERE.glob("wrong*.py"))
RIGHT = [path for path in sorted(HERE.glob("*.py")) if path not in WRONG and path.name != "check.py"]
FILES = [*EXAMPLES, *RIGHT, *WRONG]


def mypy() -> int:
    command = [sys.executable, "-m", "mypy", "--strict", "--warn-unused-ignores", "--explicit-package-bases", *map(str, FILES)]
    return subprocess.run(command, env=_environment(), cwd=HERE, check=False).returncode


def pyright() -> int:
    command = [sys.executable, "-m", "pyright", "--project", str(HERE), "--pythonpath", sys.executable, "--outputjson"]
    found = json.loads(subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True).stdout)
    for problem in found["generalDiagnostics"]:
        print(f"{problem['file']}:{problem['range']['start']['line'] + 1}: {problem['message']}")
    looked_at = found["summary"]["filesAnalyzed"]
    print(f"pyright: {found['summary']['errorCount']} errors in {looked_at} files")
    return int(found["summary"]["errorCount"] > 0 or looked_at != len(FILES))


def _environment() -> dict[str, str]:
    paths = os.pathsep.join(map(str, (ROOT / "src", ROOT / "examples", HERE)))
    return {**os.environ, "MYPYPATH": paths}


if __name__ == "__main__":
    marked = sum("type: ignore" in line for path in WRONG for line in path.read_text().splitlines())
    print(f"{len(FILES)} files, {marked} mistakes that must be refused")
    sys.exit(mypy() or pyright())
