"""A folder that was moved, or is a copy at another path: what Spark has written down with whole paths is put right."""

from __future__ import annotations

import os
import re
import zlib
from pathlib import Path
from typing import Any

import msgspec

from millstream.errors import LogError
from millstream.log.checks import CHECKSUMS, CHUNK, is_whole
from millstream.log.folder import Folder, Pinned, replace_whole, write_json

CHUNK_SIZE = 512  # bytes that one of Hadoop's checksums is for
STATE = "/state/"


def check_place(folder: Folder, lane: int, at: str) -> None:
    """Refuse the checkpoint of a lane that names files of another place than this folder has now, or had at its last start.

    It was put here from an older copy, after the folder had moved: Spark would miss its files, or read those of another folder.
    """
    checkpoint = folder.checkpoint(f"lane {lane}")
    own = {os.path.normpath(Folder(place).checkpoint(checkpoint.name)) for place in (at, folder.path)}
    for file in _metadata_files(checkpoint):
        if not is_whole(file, "metadata"):
            continue  # Spark says what is wrong with it, and it is named then
        _, metadata = _read(file)
        for path in _schema_paths(metadata):
            named = os.path.normpath(re.sub("^file:/*", "/", path).rpartition(STATE)[0])
            if named.startswith("/") and named not in own and not _is_same(named, checkpoint):
                raise LogError(
                    f"checkpoints/{checkpoint.name} in {folder.path} is from a copy that lay at {Path(named).parent.parent}; "
                    f"restore folder and checkpoints from one copy"
                )


def _is_same(named: str, checkpoint: Path) -> bool:
    """By another path, as a link makes one."""
    try:
        return checkpoint.samefile(named)
    except OSError:
        return False


def settle(folder: Folder, pinned: Pinned) -> Pinned:
    """Let a folder go on where it lies now. A kill in between does no harm: `topology.json` says last that it is done.

    Of all files in a checkpoint only the metadata of state name others by whole paths: the schema of what is kept (seen in
    checkpoints of Spark 4.3.0). Spark would look for it where the folder was, or read that of the folder that is there still.
    """
    for lane in range(pinned.lanes):
        checkpoint = folder.checkpoint(f"lane {lane}")
        for file in _metadata_files(checkpoint):
            _rewrite(file, checkpoint)
    settled = msgspec.structs.replace(pinned, at=str(folder.path))
    write_json(folder.pinned, settled)
    return settled


def _metadata_files(checkpoint: Path) -> list[Path]:
    return [file for file in sorted(checkpoint.glob("state/*/_metadata/*/*")) if not file.name.startswith(".")]


def _read(file: Path) -> tuple[bytes, Any]:
    """The version in the first line, and what is below it."""
    version, _, content = file.read_bytes().partition(b"\n")
    return version, msgspec.json.decode(content)


def _schema_paths(metadata: Any) -> list[str]:
    return [path for store in metadata.get("stateStoreInfo", ()) for path in store.get("stateSchemaFilePaths") or ()]


def _rewrite(file: Path, checkpoint: Path) -> None:
    if not is_whole(file, "metadata"):
        raise LogError(f"{file} is damaged; restore it from a copy")
    old = file.read_bytes()
    version, metadata = _read(file)
    for store in metadata.get("stateStoreInfo", ()):
        if paths := store.get("stateSchemaFilePaths"):
            store["stateSchemaFilePaths"] = [f"file:{checkpoint}{STATE}{path.rpartition(STATE)[2]}" for path in paths]
    new = version + b"\n" + msgspec.json.encode(metadata)
    if new == old:
        return
    beside = file.with_name(f".{file.name}.crc")
    beside.unlink(missing_ok=True)  # first: without it nothing is checked, with the old one Spark would refuse the new file
    mode = file.stat().st_mode
    replace_whole(file, new)
    file.chmod(mode)  # who may read it on other machines
    sums = [zlib.crc32(new[start : start + CHUNK_SIZE]) for start in range(0, len(new), CHUNK_SIZE)]
    replace_whole(beside, CHECKSUMS + b"".join(map(CHUNK.pack, [CHUNK_SIZE, *sums])))
