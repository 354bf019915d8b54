"""Both type checkers accept the examples and refuse every marked line of `wrong.py`; a mark that is not needed is an error too."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
FILES = [*sorted((ROOT / "examples").glob("*.py")), HERE / "library.py", HERE / "use_library.py", HERE / "wrong.py"]


def mypy() -> int:
    command = [sys.executable, "-m", "mypy", "--strict", "--warn-unused-ignores", *map(str, FILES)]
    return subprocess.run(command, env=_environment(), cwd=ROOT, check=False).returncode


def pyright() -> int:
    settings = {
        "include": [str(file) for file in FILES],
        "extraPaths": [str(ROOT / "src"), str(ROOT / "examples"), str(HERE)],
        "typeCheckingMode": "strict",
        "pythonVersion": "3.11",
        "reportUnnecessaryTypeIgnoreComment": "error",
        "enableTypeIgnoreComments": False,
        "reportMissingTypeStubs": "none",
    }
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder) / "pyrightconfig.json"
        project.write_text(json.dumps(settings))
        command = [sys.executable, "-m", "pyright", "--project", str(project), "--pythonpath", sys.executable]
        return subprocess.run(command, cwd=ROOT, check=False).returncode


def _environment() -> dict[str, str]:
    import os

    paths = os.pathsep.join(map(str, (ROOT / "src", ROOT / "examples", HERE)))
    return {**os.environ, "MYPYPATH": paths}


if __name__ == "__main__":
    marked = sum("type: ignore" in line for line in (HERE / "wrong.py").read_text().splitlines())
    print(f"{len(FILES)} files, {marked} mistakes that must be refused")
    sys.exit(mypy() or pyright())
