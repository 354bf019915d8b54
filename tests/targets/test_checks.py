"""What a start refuses before it changes anything: log and deliveries that are not from the copy that the commits are from."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from deltalake import DeltaTable

import millstream as ms
from millstream.core.graph import compile_topology
from millstream.core.parts import Columns
from millstream.errors import LogError
from millstream.format import Format
from millstream.log.folder import Folder, Pinned, read_json, write_json
from millstream.targets.belonging import Claim, Destination, claim, keep_destination
from millstream.targets.checks import Ends
from millstream.targets.files import FilesOutput
from millstream.targets.steps import Steps, find_steps
from millstream.targets.typed import Values
from millstream.timestamp import Timestamp
from tests.conformance.scenes import inject
from tests.log.made import local
from tests.targets.made import Made


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
    with pytest.raises(
        LogError, match=r"the log .* has epochs up to 10, but commits end with 9: .*; restore both from copies of one moment$"
    ):
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
    anew = made.anew("files", "function")
    assert anew.check().number == 9
    assert made.folder.delivery("files").exists(), "a check changes nothing"
    ledger = anew.claim(Timestamp(1))
    assert ledger.delivered == {"console": 7, "table": 7}
    assert {name: ledger.plant.since[name] for name in ("files", "console")} == {"files": 10, "console": 0}
    assert not made.folder.delivery("files").exists()
    assert made.folder.delivery("console").exists()


def test_a_checkpoint_of_another_place_is_refused_before_anything_is_changed(made: Made) -> None:
    """Put into a folder that has moved since the copy was made: Spark would look for its files where they were."""
    file = made.folder.checkpoint("lane 0") / "state" / "0" / "_metadata" / "v2" / "3"
    file.parent.mkdir(parents=True)
    for at, fits in ((made.folder.path, True), (made.at / "older", False)):
        schema = f"file:{at}/checkpoints/lane 0/state/0/_stateSchema/default/0_4f0c"
        file.write_text("v2\n" + json.dumps({"stateStoreInfo": [{"storeName": "default", "stateSchemaFilePaths": [schema]}]}))
        before = made.files()
        if fits:
            made.journal.check()
        else:
            with pytest.raises(LogError, match=rf"checkpoints/lane 0 in .*/mill is from a copy that lay at {at}; restore folder and check"):
                made.journal.check()
        assert made.files() == before


# Targets.


def test_a_table_of_another_copy_is_refused_before_a_commit_is_made(made: Made) -> None:
    made.table(10)
    before = made.files()
    both_ways = r"restore folder and target from one copy, or .* --deliver-anew 'table', or deliver_anew=\['table'\] from Python"
    told = rf"delivery 'table': .*/table has epochs up to 10, but commits end with 9: this folder is from an older copy; {both_ways}"
    with pytest.raises(LogError, match=told):
        made.journal.check()
    assert made.files() == before
    made.table(6)
    with pytest.raises(
        LogError, match=rf"delivery 'table': .*/table ends with epoch 6, but the commits say that it had 7: .*; {both_ways}"
    ):
        made.journal.check()


def test_a_table_that_was_deleted_is_said_and_how_to_have_it_again(made: Made) -> None:
    shutil.rmtree(made.at / "table")
    told = r"table has nothing of what delivery 'table' has delivered, up to epoch 7: it was deleted, .* --deliver-anew 'table'"
    with pytest.raises(LogError, match=told):
        made.journal.check()
    made.anew("table").check()
    keep_destination(made.folder.delivery("table"), Destination(str(made.at / "other"), 0))
    made.journal.check()  # another path than before: what comes goes there
    keep_destination(made.folder.delivery("table"), Destination(str(made.at / "table"), 7))
    made.journal.check()  # it was another path, and nothing has come yet
    keep_destination(made.folder.delivery("table"), Destination(str(made.at / "table"), 5))
    with pytest.raises(LogError, match=told):
        made.journal.check()


def test_a_delivery_that_went_to_a_function_until_now_begins_where_it_is(made: Made) -> None:
    for name in ("table", "files"):
        (made.folder.delivery(name) / "target.json").unlink()
        shutil.rmtree(made.at / name)
    made.journal.check()


@pytest.mark.parametrize("target", ["function", "files"])
def test_a_delivery_that_went_to_a_table_until_now_goes_on_as_the_commits_say(made: Made, target: str) -> None:
    """What the table has stands in the table, and its steps here have never said so."""
    topology = ms.Topology("checked")
    other = ms.function(lambda step, records: None) if target == "function" else ms.to_files(str(made.at / "elsewhere"))
    topology.deliver("table", inject(topology), other)
    graph, ledger = compile_topology(topology), made.journal.check()
    with pytest.raises(LogError, match=r"as the commits say, but .* ends with 0"):
        Ends.of(made.folder, graph).check(made.folder, graph, ledger)
    Steps(made.folder.delivery("table"), fence=2).check_there("table", delivered=7)
    before = made.files()
    Ends.of(made.folder, graph).check(made.folder, graph, ledger)
    assert made.files() == before


def test_a_table_that_was_emptied_and_made_again_is_a_deleted_one(made: Made) -> None:
    shutil.rmtree(made.at / "table")
    DeltaTable.create(str(made.at / "table"), made.values().schema)
    with pytest.raises(LogError, match="has nothing of what delivery 'table' has delivered"):
        made.journal.check()


def test_a_folder_of_files_that_was_deleted_is_said_and_how_to_have_it_again(made: Made) -> None:
    (made.at / "files").rmdir()
    with pytest.raises(LogError, match=r"files is missing, and delivery 'files' has delivered to it: .* --deliver-anew 'files'"):
        made.journal.check()
    made.anew("files").check()
    keep_destination(made.folder.delivery("files"), Destination(str(made.at / "other"), 0))
    made.journal.check()
    keep_destination(made.folder.delivery("files"), Destination(str(made.at / "files"), 0))
    (made.at / "files").mkdir()
    made.journal.check()  # whoever reads the files may take them away


def test_files_that_are_ahead_are_refused_before_a_commit_is_made(made: Made) -> None:
    steps = find_steps(made.folder.delivery("files"))
    assert steps is not None
    (made.at / "files" / f"files-{steps.kept.identity[:8]}-000000000-0000.jsonl").touch()
    with pytest.raises(LogError, match="files has files of step 0 of delivery 'files', and this folder has begun 0 steps"):
        made.journal.check()


def test_files_that_are_from_an_older_copy_are_refused(made: Made) -> None:
    path, folder = made.at / "files", made.folder.delivery("files")
    for file in folder.glob("0*"):
        file.unlink()
    steps = Steps(folder, fence=1)
    output = FilesOutput("files", str(path), Format.JSON_LINES, made.values(), steps=steps, still_owner=lambda: True)
    event = b'{"key": "k", "at": 0, "words": []}'
    for epoch in (3, 6):
        output.add(epoch, "events", "events", epoch, Columns(["k"], [event], [Timestamp(0)], [0]))
        output.commit(epoch)
        if epoch == 3:
            shutil.copytree(path, made.at / "older")
    output.commit(8)
    for file in path.glob("*.jsonl"):
        file.unlink()
    made.journal.check()  # whoever reads the files may take them away
    shutil.rmtree(path)
    (made.at / "older").rename(path)
    with pytest.raises(LogError, match=r"files has step 0 of delivery 'files' as its last one, but .* says that it had 1: it is from an"):
        made.journal.check()
    made.anew("files").check()


def test_a_table_of_other_types_is_refused_before_a_commit_is_made(made: Made) -> None:
    shutil.rmtree(made.at / "table")
    DeltaTable.create(str(made.at / "table"), Values("clicks", dict[str, bool]).schema)
    before = made.files()
    for journal in (made.journal, made.anew("table")):
        with pytest.raises(LogError, match=r"table holds values of map.*; deliver it to another path, or keep the old type"):
            journal.check()
    assert made.files() == before


@pytest.mark.parametrize("name", ["table", "files"])
def test_a_target_that_another_folder_delivers_to_under_the_same_name_is_refused(made: Made, name: str) -> None:
    claim(name, made.at / name, Folder("/elsewhere/mill"), "another")
    before = made.files()
    with pytest.raises(
        LogError, match=f"delivery '{name}': .*{name} has what another folder, /elsewhere/mill, delivers under this name, .*; empty the"
    ):
        made.journal.check()
    assert made.files() == before
    made.anew(name).check()


def test_of_a_folder_and_its_copy_only_one_delivers(made: Made, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = Folder(tmp_path_factory.mktemp("other") / "mill")
    claim("table", made.at / "table", other, "id")
    made.journal.check()  # it was moved from there
    write_json(other.pinned, Pinned("checked", "id", str(other.path), 4, 1))
    with pytest.raises(LogError, match=rf"delivery 'table': .* is a copy of {other.path}, which delivers to .*table; both would deliver"):
        made.journal.check()
    write_json(other.pinned, Pinned("checked", "another", str(other.path), 4, 1))
    made.journal.check()  # what is there by now is something else
    shutil.rmtree(other.path)
    other.path.symlink_to(made.folder.path)
    write_json(made.folder.pinned, Pinned("checked", "id", str(made.folder.path), 4, 1))
    made.journal.check()  # the same folder, by another path


def test_a_claim_changes_with_the_folder_that_makes_it(tmp_path: Path) -> None:
    for at in ("/one/mill", "/two/mill"):
        claim("out", tmp_path, Folder(at), "id")
        assert read_json(tmp_path / ".millstream" / "out.json", Claim) == Claim("id", at)


def test_a_target_that_cannot_be_written_to_is_refused_before_anything_runs(made: Made, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "table")
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
