"""Ways to be wrong around the core: what travels, files, copies of a folder, notes, processes."""

from __future__ import annotations

from tests.mutations import Mutant

FILES = "tests/sources/test_files.py"
SHIPPING = "tests/shipping"
EDGES = [
    # What travels.
    Mutant(
        "a value that is one of a kind travels as a copy",
        "shipping/pickler.py",
        "        if place is not None:\n            return _found, place\n",
        "",
        SHIPPING,
    ),
    Mutant(
        "a Struct travels as its attributes",
        "shipping/pickler.py",
        "                if issubclass(obj, msgspec.Struct):",
        "                if False:",
        SHIPPING,
    ),
    Mutant("names inside a type stay text", "core/codec.py", "if _has_text(hint)}", "if isinstance(hint, str)}", SHIPPING),
    Mutant("the driver runs what was not shipped", "testing/driver.py", "if ship else self._graph", "if False else self._graph", SHIPPING),
    # Files.
    Mutant("files of one time come as the folder lists them", "sources/files.py", "in sorted(found)]", "in found]", FILES),
    Mutant(
        "a line belongs to the range that it ends in",
        "sources/formats.py",
        '        if end is not None and not content.endswith(b"\\n"):\n            content += file.readline()\n',
        "",
        FILES,
    ),
    Mutant(
        "a list that is older than the commits is believed",
        "sources/files.py",
        "if listed.count < first or (place and not unread):",
        "if False:",
        FILES,
    ),
    # Copies of a folder.
    Mutant(
        "files that are ahead are not looked for",
        "targets/files.py",
        "        check_not_ahead(name, self._path, newest_step(name, self._path, steps.identity), steps.begun)\n",
        "",
        "tests/targets/test_files.py",
    ),
    Mutant(
        "a delivery that begins anew goes on",
        "spark/milling.py",
        "            forget_steps(self._folder.delivery(name))\n",
        "            pass\n",
        "tests/targets/test_checks.py",
    ),
    Mutant(
        "the ledger keeps how far a delivery was that begins anew",
        "mill/beginning.py",
        " if name not in plant.deliveries or name in anew}",
        " if name not in plant.deliveries}",
        "tests/targets/test_checks.py",
    ),
    Mutant(
        "a table that was deleted is made again without a word",
        "targets/written.py",
        "        if after is None and known.delivered > begins:\n",
        "        if False:\n",
        "tests/targets/test_checks.py",
    ),
    Mutant(
        "a table that is ahead is not looked at before a run",
        "targets/written.py",
        "        check_reach(name, str(self.path), before=",
        "        return\n        check_reach(name, str(self.path), before=",
        "tests/targets/test_checks.py",
    ),
    Mutant(
        "whose a target is counts for nothing",
        "targets/checks.py",
        "                check_claim(name, place.path, folder, id_)\n",
        "                pass\n",
        "tests/targets/test_checks.py",
    ),
    Mutant(
        "what has left a table by compaction is swept",
        "targets/leftovers.py",
        "            if epoch >= since and name not in named:\n",
        "            if True:\n",
        "tests/targets/test_leftovers.py",
    ),
    Mutant(
        "files of an older copy are not noticed",
        "targets/written.py",
        "        if has is not None and has + 1 < kept.next:\n",
        "        if False:\n",
        "tests/targets/test_checks.py",
    ),
    # A new computation.
    Mutant(
        "a new computation begins with the epoch before it",
        "mill/beginning.py",
        "readers=readers_of(outline, ledger.readers, since=number + 1)",
        "readers=readers_of(outline, ledger.readers, since=number - 1)",
        "tests/mill/test_planner.py",
    ),
    # What is kept can be read again.
    Mutant(
        "a state of another type than declared is kept",
        "core/turn.py",
        "                codec.check(kept)\n",
        "                pass\n",
        "tests/core/test_declared.py",
    ),
    Mutant(
        "a value of another type than declared is produced",
        "core/productions.py",
        "                check(data)\n",
        "                pass\n",
        "tests/core/test_declared.py",
    ),
    # Targets with transactions of their own, and those that do not answer.
    Mutant(
        "a target that comes back empty is filled up from the middle",
        "targets/connection.py",
        "        if last is None and step.number > 0:\n",
        "        if False:\n",
        "tests/targets/test_transacted.py",
    ),
    Mutant(
        "a step whose answer was lost is written once more",
        "targets/connection.py",
        "        if last == step:\n",
        "        if False:\n",
        "tests/targets/test_transacted.py",
    ),
    Mutant(
        "a run that waits for its target does not look whether it is overtaken",
        "targets/driver.py",
        "        if not abandoned and not self._journal.still_owner():\n",
        "        if False:\n",
        "tests/targets/test_transacted.py",
    ),
    Mutant(
        "a target that was emptied is begun with anew",
        "targets/opening.py",
        "    if last is None and delivered > to.begins:\n",
        "    if False:\n",
        "tests/targets/test_transacted.py",
    ),
    # The planner's process.
    Mutant(
        "nobody tells the planner that it is not heard",
        "spark/planning.py",
        "            self._channel.close()  # or whoever waits for these notes would wait for ever\n",
        "",
        "tests/spark/test_planning.py",
    ),
    Mutant(
        "a note is fed again before a commit has taken it",
        "mill/noted.py",
        "                self._fed[injector] = taken\n",
        "",
        "tests/mill/test_noted.py",
    ),
]
