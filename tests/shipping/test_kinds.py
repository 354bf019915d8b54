"""All that a user's module may have, through a second process and back: as a script and as a module, with text annotations or without."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

KINDS = Path(__file__).parent / "kinds.py"
SEEN = (
    "[{'count': 1, 'names': ['ANN Y'], 'tree': 7, 'pair': {'one': 'a', 'two': 'b'}, 'color': 'blue', 'move': 'Down 55'}, "
    "{'count': 2, 'names': ['ANN Y', 'ANN Y'], 'tree': 7, 'pair': {'one': 'a', 'two': 'b'}, 'color': 'blue', 'move': 'Down 55'}]"
)
KEPT = (
    "Kept(count=2, names=['ANN Y', 'ANN Y'], last=Thing(a=1, tags=['made', 'made'], made={}), "
    "plain=Plain(a=7, b='x', tags=['wider 1x0.5', 'wider 1x0.5']))"
)


def written(folder: Path, *, text_annotations: bool) -> Path:
    """A package of the user's with the kinds in it."""
    package = folder / "ours"
    package.mkdir()
    (package / "__init__.py").touch()
    future = "from __future__ import annotations\n\n" if text_annotations else ""
    doc, _, code = KINDS.read_text().partition('"""\n\n')
    (package / "all_kinds.py").write_text(f'{doc}"""\n\n{future}{code}')
    return package / "all_kinds.py"


@pytest.mark.parametrize("text_annotations", [False, True])
@pytest.mark.parametrize("way", ["script", "module", "imported"])
def test_they_arrive_as_they_are(way: str, text_annotations: bool, tmp_path: Path) -> None:
    file = written(tmp_path, text_annotations=text_annotations)
    command = {
        "script": [str(file)],
        "module": ["-m", "ours.all_kinds"],
        "imported": ["-c", "import ours.all_kinds; ours.all_kinds.drive()"],
    }[way]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])}
    done = subprocess.run([sys.executable, *command, "--driver"], env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [SEEN, KEPT]
