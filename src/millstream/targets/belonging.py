"""A delivery and its target belong together: the folder of a run says where it delivers to, and the target who delivers there."""

from __future__ import annotations

from pathlib import Path

import msgspec

from millstream.errors import LogError
from millstream.log.folder import Folder, read_json, write_json
from millstream.targets.steps import TARGET

CLAIMS = ".millstream"  # in a target; tools leave alone what begins with a dot


class Destination(msgspec.Struct, frozen=True):
    """Where a delivery goes, and the epoch after which that began: what came before went elsewhere."""

    path: str
    begins: int


class Claim(msgspec.Struct, frozen=True):
    """The folder that delivers to a target, under the name that the claim has."""

    id: str
    at: str


class Reached(msgspec.Struct, frozen=True):
    """The last step that a folder of files has of a delivery. The files may be gone: whoever reads them may take them away."""

    identity: str
    step: int


def destination(delivery: Path, path: Path | str, *, delivered: int) -> Destination:
    """Of a delivery that has `delivered`, there or elsewhere, and that goes to `path` now: a folder, or how a target describes itself."""
    found = read_json(delivery / TARGET, Destination)
    return found if found is not None and found.path == str(path) else Destination(str(path), delivered)


def keep_destination(delivery: Path, to: Destination) -> None:
    """On the disk before the target is written to: by it a later start knows a target that was lost from one that is new."""
    if read_json(delivery / TARGET, Destination) != to:
        write_json(delivery / TARGET, to)


def check_claim(name: str, target: Path, folder: Folder, id_: str) -> None:
    """Refuse a target that another folder delivers to under the same name: each would add what the other has added."""
    found = read_json(_claim(name, target), Claim)
    if found is None or found == Claim(id_, str(folder.path)):
        return
    if found.id != id_:
        raise LogError(
            f"delivery {name!r}: {target} has what another folder, {found.at}, delivers under this name, and what that has would be "
            f"there twice; empty the target, or deliver under another name or to another path, or add to what is there: "
            f"--deliver-anew {name!r}, or deliver_anew=[{name!r}] from Python"
        )
    if _is_another(found, folder):
        raise LogError(
            f"delivery {name!r}: {folder.path} is a copy of {found.at}, which delivers to {target}; both would deliver there as one: "
            f"remove or rename the folder that is not to go on, or deliver to another path"
        )


def claim(name: str, target: Path, folder: Folder, id_: str) -> None:
    """From now on it is this folder's."""
    if read_json(_claim(name, target), Claim) != (ours := Claim(id_, str(folder.path))):
        write_json(_claim(name, target), ours)


def reached(name: str, target: Path, identity: str) -> int | None:
    """The last step that a target says it has; None if it says nothing of this delivery."""
    found = read_json(_reached(name, target), Reached)
    return found.step if found is not None and found.identity == identity else None


def keep_reached(name: str, target: Path, identity: str, step: int) -> None:
    """On the disk before the step is done: by it a later start knows a target that was restored from an older copy."""
    write_json(_reached(name, target), Reached(identity, step))


def _reached(name: str, target: Path) -> Path:
    return target / CLAIMS / f"{name}.step"


def _claim(name: str, target: Path) -> Path:
    return target / CLAIMS / f"{name}.json"


def _is_another(claimed: Claim, folder: Folder) -> bool:
    """Whether the folder of a claim still is where it was, and not this one by another path, or moved here."""
    other = Folder(claimed.at)
    try:
        pinned = other.read_pinned()
    except (LogError, OSError):
        return False  # what is there now is no folder of this run that could go on
    return pinned is not None and pinned.id == claimed.id and not other.path.samefile(folder.path)
