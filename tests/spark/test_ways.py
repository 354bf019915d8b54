"""Every way to run a topology whose classes are the user's own, in real processes of Spark's: all of them arrive as they are."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.shipping.kinds import WRONG, lines
from tests.shipping.test_kinds import written
from tests.spark.cluster import ENVIRONMENT, SPARK, cluster, submit

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def script(file: Path, environment: dict[str, str]) -> None:
    python(environment, file.parent, str(file))


def module(file: Path, environment: dict[str, str]) -> None:
    python(environment, file.parent.parent, "-m", "ours.all_kinds")


def command(file: Path, environment: dict[str, str]) -> None:
    at = f"{environment['KINDS_BASE']}/mill"
    python(environment, file.parent, "-m", "millstream.command.main", "run", str(file), "--at", at, "--until-drained")


def notebook(file: Path, environment: dict[str, str]) -> None:
    """Cell by cell in a kernel of Jupyter's; `__main__` has no file there."""
    from jupyter_client.manager import start_new_kernel

    _, _, code = file.read_text().partition('"""\n\n')
    *cells, guard = code.split("\n\n\n")
    assert guard.startswith("if __name__")
    manager, client = start_new_kernel(kernel_name="python3", env=environment, cwd=str(file.parent))
    try:
        for cell in [*cells, "main()"]:
            answer = client.execute_interactive(cell, timeout=240)
            assert answer["content"]["status"] == "ok", "\n".join(answer["content"].get("traceback", []))
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def spark_submit(file: Path, environment: dict[str, str]) -> None:
    command = [str(SPARK / "bin" / "spark-submit"), "--master", "local[4]", str(file)]
    finished(subprocess.run(command, cwd=file.parent, env={**ENVIRONMENT, **environment}, capture_output=True, text=True))


def on_a_cluster(file: Path, environment: dict[str, str]) -> None:
    base = file.parent.parent / "cluster"
    base.mkdir()
    with cluster(base, workers=2) as url:
        process = submit(url, file, log=base / "submit.log", settings={}, environment=environment)
        assert process.wait(240) == 0, (base / "submit.log").read_text()


def python(environment: dict[str, str], folder: Path, *words: str) -> None:
    finished(subprocess.run([sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True))


def finished(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stdout + done.stderr


def check(way: Callable[[Path, dict[str, str]], None], tmp_path: Path, *, text_annotations: bool) -> None:
    base = tmp_path / "base"
    (base / "in").mkdir(parents=True)
    (base / "in" / "1.jsonl").write_text("\n".join(lines()))
    file = written(tmp_path, text_annotations=text_annotations)
    way(file, {**os.environ, "KINDS_BASE": str(base)})
    rows = sorted(DeltaTable(str(base / "seen")).to_pyarrow_table().to_pylist(), key=lambda row: row["value"]["count"])
    usual = {"tree": 7, "pair": {"one": "a", "two": "b"}, "color": "blue", "move": "Down 55"}
    assert [row["value"] for row in rows] == [
        {"count": 1, "names": ["ANN Y"], **usual},
        {"count": 2, "names": ["ANN Y", "ANN Y"], **usual},
    ]
    dead = [line for part in (base / "dead").glob("*.jsonl") for line in part.read_text().splitlines()]
    assert len(dead) == len(WRONG), dead


@pytest.mark.parametrize(("way", "text_annotations"), [(script, False), (command, True), (notebook, True)])
def test_what_is_the_users_own_arrives_as_it_is(way: Callable[..., None], text_annotations: bool, tmp_path: Path) -> None:
    check(way, tmp_path, text_annotations=text_annotations)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("way", "text_annotations"),
    [(script, True), (module, False), (command, False), (notebook, False), (spark_submit, True), (on_a_cluster, True)],
)
def test_so_it_does_every_other_way(way: Callable[..., None], text_annotations: bool, tmp_path: Path) -> None:
    check(way, tmp_path, text_annotations=text_annotations)
