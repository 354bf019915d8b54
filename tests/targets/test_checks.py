"""What a start refuses before it changes anything: log and deliveries that are not from the copy that the commits are from."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.core.graph import Graph, compile_topology
from millstream.core.ledger import Commit
from millstream.errors import LogError
from millstream.log.folder import Folder, Pinned
from millstream.mill.beginning import plant_of
from millstream.spark.milling import Journal
from millstream.targets.checks import Ends
from millstream.targets.steps import Steps
from millstream.timestamp import Timestamp
from tests.conformance.scenes import inject
from tests.log.made import local

TARGETS: dict[str, Any] = {"function": ms.function(lambda step, records: None), "console": ms.console()}


class Made:
    """A folder of a run: nine commits; the log has seven of them, and so have the deliveries, as commits say. They have eight by now."""

    def __init__(self, at: Path) -> None:
        self.folder = Folder(at)
        topology = ms.Topology("checked")
        stream = inject(topology)
        targets = {**TARGETS, "files": ms.to_files(str(at / "files")), "table": ms.delta(str(at / "table"))}
        for name, target in targets.items():
            topology.deliver(name, stream, target)
        self.graph: Graph = compile_topology(topology)
        self.journal = Journal(self.folder, self.graph, Pinned("checked", "id", str(at), 4, 1))
        self.journal.commits.make_folders()
        plant = plant_of(self.graph.outline, buckets=4, lanes=1)
        for number in range(1, 10):
            said = {"logged": 7, "delivered": dict.fromkeys(targets, 7)} if number == 9 else {}
            commit = Commit(number, f"c{number}", f"c{number - 1}" if number > 1 else "", 1, Timestamp(0), **said)  # type: ignore[arg-type]
            commit.plant = plant if number == 1 else None
            assert self.journal.commits.create(commit)
        local(self.folder.log).grow(*range(1, 9))
        for name in targets:
            self.steps(name, 8 if name != "table" else 0)

    def steps(self, name: str, position: int, *, open: int | None = None) -> None:
        shutil.rmtree(self.folder.delivery(name), ignore_errors=True)
        steps = Steps(self.folder.delivery(name), fence=1)
        steps.skip(position)
        if open is not None:
            steps.begin(position, open)
        steps.close()

    def files(self) -> dict[str, bytes]:
        return {str(file.relative_to(self.folder.path)): file.read_bytes() for file in self.folder.path.rglob("*") if file.is_file()}


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path)


def test_what_fits_is_let_through_and_nothing_is_changed(made: Made) -> None:
    before = made.files()
    assert made.journal.check().number == 9
    assert made.files() == before


def test_a_log_that_was_only_begun_has_nothing(made: Made) -> None:
    """A start that met a full disk, or a kill, had made its folder and no entry."""
    shutil.rmtree(made.folder.log)
    (made.folder.log / "_delta_log").mkdir(parents=True)
    assert Ends.of(made.folder, made.graph).log == 0
    with pytest.raises(LogError, match=r"the log .*log ends with epoch 0, but the commits say that it had 7"):
        made.journal.check()


@pytest.mark.parametrize("name", ["function", "files"])
@pytest.mark.parametrize(
    ("position", "open", "message"),
    [
        (6, None, "has delivered up to epoch 7, as the commits say, but .* ends with 6"),
        (10, None, "has delivered up to epoch 10, as .* says, but commits end with 9"),
        (8, 10, "has delivered up to epoch 10, as .* says, but commits end with 9"),
    ],
)
def test_steps_of_another_copy_are_refused_before_a_commit_is_made(
    made: Made, name: str, position: int, open: int | None, message: str
) -> None:
    made.steps(name, position, open=open)
    before = made.files()
    with pytest.raises(LogError, match=f"delivery '{name}' {message}"):
        made.journal.check()
    assert made.files() == before


@pytest.mark.parametrize("name", ["function", "console", "files", "table"])
def test_steps_that_are_gone_are_refused(made: Made, name: str) -> None:
    shutil.rmtree(made.folder.delivery(name))
    with pytest.raises(LogError, match=f"{name} is missing, and delivery '{name}' has delivered already"):
        made.journal.check()
    assert not made.folder.delivery(name).exists()


def test_where_nothing_waits_for_the_disk_the_commits_may_know_more(made: Made) -> None:
    made.steps("console", 2)
    made.journal.check()


def test_damaged_steps_are_refused(made: Made) -> None:
    (file,) = made.folder.delivery("function").iterdir()
    file.write_bytes(b"")
    with pytest.raises(LogError, match=f"{file} is damaged"):
        made.journal.check()


def test_a_log_of_another_copy_is_refused(made: Made) -> None:
    shutil.rmtree(made.folder.log)
    with pytest.raises(LogError, match="ends with epoch 0, but the commits say that it had 7"):
        made.journal.check()
    assert not made.folder.log.exists()
    local(made.folder.log).grow(10)
    with pytest.raises(LogError, match="has epochs up to 10, but commits end with 9"):
        made.journal.check()


def test_a_run_that_goes_on_meanwhile_is_no_damage(made: Made) -> None:
    """Where no lock reaches, another run may commit and deliver while this one looks."""
    before = Ends.of(made.folder, made.graph)
    ledger = made.journal.check()
    made.steps("files", 12)
    local(made.folder.log).grow(12)
    before.check(made.folder, made.graph, ledger)
    ahead = Ends.of(made.folder, made.graph)
    with pytest.raises(LogError, match="has epochs up to 12"):
        ahead.check(made.folder, made.graph, ledger)


def test_of_a_delivery_that_begins_anew_nothing_counts(made: Made) -> None:
    made.steps("files", 6)
    made.steps("function", 12)
    with pytest.raises(LogError, match="--deliver-anew 'function'"):
        made.journal.check()
    anew = Journal(made.folder, made.graph, Pinned("checked", "id", str(made.folder.path), 4, 1), anew=("files", "function"))
    assert anew.check().number == 9
    assert made.folder.delivery("files").exists(), "a check changes nothing"
    ledger = anew.claim(Timestamp(1))
    assert ledger.delivered == {"console": 7, "table": 7}
    assert {name: ledger.plant.since[name] for name in ("files", "console")} == {"files": 10, "console": 0}
    assert not made.folder.delivery("files").exists()
    assert made.folder.delivery("console").exists()


def test_a_target_that_cannot_be_written_to_is_refused_before_anything_runs(made: Made, tmp_path: Path) -> None:
    (tmp_path / "table").write_text("a file")
    before = made.files()
    with pytest.raises(LogError, match=r"delivery 'table': .*table is to be a folder, and .*table is a file; deliver to another path"):
        made.journal.check()
    assert made.files() == before


def test_a_folder_that_may_not_be_written_to_is_refused(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is root may write everywhere, so the system's answer is made up."""
    monkeypatch.setattr("millstream.targets.checks.os.access", lambda path, how: False)
    with pytest.raises(LogError, match=r"delivery 'files': .* cannot be written to; make it writable, or deliver to another path"):
        made.journal.check()
