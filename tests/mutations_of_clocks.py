"""Ways to be wrong about silence, time and its absence, and clocks; `make mutants` plays them."""

from tests.mutations import Mutant

LOW_WATERMARK = "tests/core/test_low_watermark.py"
SCENES = "tests/conformance/test_clocks.py"
IDLE = "tests/mill/test_idle.py"
EXTRACT = "tests/core/test_clocks.py"

CLOCKS = [
    # Idle injectors.
    Mutant(
        "wait for an idle injector",
        "core/low_watermark.py",
        "for of in node.injectors if of not in known.idle and of not in self._timeless]",
        "for of in node.injectors if of not in self._timeless]",
        LOW_WATERMARK,
    ),
    Mutant(
        "move on though all that is read is silent",
        "core/low_watermark.py",
        "stays = known.last if known.rests else inputs[name]",
        "stays = inputs[name]",
        LOW_WATERMARK,
    ),
    Mutant(
        "keep readers back by the low watermark of one that rests",
        "core/low_watermark.py",
        "    return Solution(found, outputs)\n",
        "    return Solution(found, {name: lw.output for name, lw in found.items()})\n",
        LOW_WATERMARK,
    ),
    Mutant(
        "take an input that has ended for one that is active",
        "core/low_watermark.py",
        "if of not in idle and of not in ended and of not in self._timeless]",
        "if of not in idle and of not in self._timeless]",
        LOW_WATERMARK,
    ),
    Mutant(
        "solve nothing anew when an injector falls idle",
        "core/low_watermark.py",
        "!= upto or (injector in before.idle) != (injector in known.idle)",
        "!= upto",
        LOW_WATERMARK,
    ),
    Mutant(
        "call an injector idle that nobody listens to",
        "core/planning.py",
        "if idle_after is None or name not in listened or name in holding:",
        "if idle_after is None or name in holding:",
        IDLE,
    ),
    Mutant(
        "call an injector idle because one of its partitions is",
        "core/planning.py",
        "clock - max(heard) > idle_after",
        "clock - min(heard) > idle_after",
        f"{IDLE} {SCENES}",
    ),
    Mutant(
        "let silence far from the injectors make nothing due",
        "core/planning.py",
        "(other is not None or outline.nodes[name].injectors)",
        "outline.nodes[name].injectors",
        IDLE,
    ),
    Mutant(
        "count as silence what nobody could hear",
        "mill/offered.py",
        "            if name in self._deaf or self._known(name):\n                self.listened[name] = clock\n",
        "            pass\n",
        IDLE,
    ),
    Mutant(
        "count as silence what could not come in, for there was no room",
        "mill/offered.py",
        "self.listened = dict.fromkeys(self.listened, clock)",
        "pass",
        IDLE,
    ),
    Mutant(
        "count as silence the time in which an epoch read",
        "mill/offered.py",
        "            self.listened[injector] = at.clock\n",
        "",
        IDLE,
    ),
    Mutant(
        "sleep through the moment at which one that never spoke falls idle",
        "core/planning.py",
        "        if name in listened:\n            moments",
        "        if False:\n            moments",
        IDLE,
    ),
    Mutant("keep who was idle over a start", "mill/beginning.py", "idle=[] if ledger.idle else None", "idle=None", IDLE),
    # Without event time.
    Mutant(
        "call a record without event time late",
        "core/turn.py",
        "START_OF_TIME if of and of[0].timeless else self._before",
        "self._before",
        SCENES,
    ),
    Mutant(
        "wait for records without event time",
        "core/planning.py",
        "*(() if read.aside else (read.computation,))",
        "read.computation",
        f"{SCENES} tests/core/test_planning_timeless.py",
    ),
    Mutant(
        "let a record without event time take the output back",
        "core/planning.py",
        "bound = oldest if name in kept_back else max(oldest, input_of(last.get(name)))",
        "bound = oldest",
        SCENES,
    ),
    Mutant(
        "wait for what is made of records without event time",
        "core/low_watermark.py",
        "if not (of in self._untimed and of in resting) or name in self._untimed]",
        "if True]",
        f"{LOW_WATERMARK} {SCENES}",
    ),
    Mutant(
        "let a question wait behind a backlog",
        "core/planning.py",
        "START_OF_TIME if self.timeless else head.part.oldest",
        "head.part.oldest",
        "tests/core/test_planning_timeless.py",
    ),
    # Clocks.
    Mutant(
        "believe that a device sends at once",
        "clocks.py",
        "return min(received, received - (sent - occurred))",
        "return received",
        EXTRACT,
    ),
    Mutant(
        "date before it was received what was sent before it occurred",
        "clocks.py",
        "return min(received, received - (sent - occurred))",
        "return received - (sent - occurred)",
        EXTRACT,
    ),
    Mutant("ask devices for our calendar", "core/extract.py", "any_clock=True)", "any_clock=False)", EXTRACT),
    Mutant(
        "date by the bound of the future what arrives",
        "core/extract.py",
        "found: list[Any] = [now if arrived is None else arrived]",
        "found: list[Any] = [now]",
        EXTRACT,
    ),
]
