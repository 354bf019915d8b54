"""The arithmetic of low watermarks: one promise, many computations, and the injectors that begin it all."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from millstream.core import low_watermark
from millstream.core.ledger import SourceProgress
from millstream.core.low_watermark import Bounds, Known, LowWatermark, Mark, Solver, advance, promise
from millstream.core.outline import OutlinedNode
from millstream.core.planning import hear
from millstream.timestamp import END_OF_TIME, START_OF_TIME

INSTANTS = st.integers(0, 4) | st.just(END_OF_TIME)


def bounds(*producers: str, promised=END_OF_TIME, undelivered=END_OF_TIME, delivered=END_OF_TIME, held=END_OF_TIME, last=START_OF_TIME):
    return Bounds(producers, promised, undelivered, delivered, held, last)


def rests(known: Bounds) -> Bounds:
    return replace(known, rests=True)


def solve(graph: dict[str, Bounds]) -> dict[str, LowWatermark]:
    return low_watermark.solve(graph).low_watermarks


# One low watermark.


def test_advance_goes_to_the_least_bound() -> None:
    assert advance(1, 7, 5, 9) == 5


def test_advance_never_goes_back() -> None:
    assert advance(6, 7, 5, 9) == 6


def test_advance_without_a_bound_reaches_the_end_of_time() -> None:
    assert advance(6) == END_OF_TIME


# Computations.


def test_input_is_the_least_of_promise_undelivered_and_producers() -> None:
    for least in range(3):
        promised, undelivered, held = (5 if number == least else 9 for number in range(3))
        found = solve({"p": bounds(promised=20, held=held), "x": bounds("p", promised=promised, undelivered=undelivered)})
        assert found["x"].input == 5


def test_output_is_the_least_of_input_delivered_and_held() -> None:
    assert solve({"x": bounds(promised=5, delivered=9, held=9)})["x"] == LowWatermark(5, 5)
    assert solve({"x": bounds(promised=9, delivered=5, held=9)})["x"] == LowWatermark(9, 5)
    assert solve({"x": bounds(promised=9, delivered=9, held=5)})["x"] == LowWatermark(9, 5)


def test_a_chain_passes_the_promise_on_whole_in_one_epoch() -> None:
    # Listed from its end: the order of computations must not matter.
    chain = {"c": bounds("b"), "b": bounds("a"), "a": bounds(promised=7)}
    assert solve(chain) == dict.fromkeys("cba", LowWatermark(7, 7))


def test_a_hold_keeps_back_what_comes_after_it_and_nothing_before() -> None:
    chain = {"a": bounds(promised=9), "b": bounds("a", held=4), "c": bounds("b")}
    assert solve(chain) == {"a": LowWatermark(9, 9), "b": LowWatermark(9, 4), "c": LowWatermark(4, 4)}


def test_fan_in_waits_for_the_slowest_producer() -> None:
    joined = {"a": bounds(promised=9), "b": bounds(promised=3), "c": bounds("a", "b")}
    assert solve(joined)["c"] == LowWatermark(3, 3)


def test_a_cycle_is_kept_back_by_what_is_outside_of_it_alone() -> None:
    cycle = {"a": bounds("b", promised=8), "b": bounds("a")}
    assert solve(cycle) == dict.fromkeys("ab", LowWatermark(8, 8))


def test_a_cycle_waits_for_the_work_in_it() -> None:
    assert solve({"a": bounds("b", promised=8, undelivered=3), "b": bounds("a")})["b"] == LowWatermark(3, 3)
    assert solve({"a": bounds("b", promised=8), "b": bounds("a", delivered=3)})["a"] == LowWatermark(3, 3)
    assert solve({"a": bounds("b", promised=8), "b": bounds("a", held=3)})["a"] == LowWatermark(3, 3)


def test_a_late_record_lowers_the_output_but_no_input_goes_back() -> None:
    found = solve({"a": bounds(promised=9, delivered=2, last=9), "b": bounds("a", last=9)})
    assert found == {"a": LowWatermark(9, 2), "b": LowWatermark(9, 9)}


@st.composite
def graphs(draw, most: int = 3) -> dict[str, Bounds]:
    """Any graph, cycles and computations that read themselves among them."""
    names = [f"c{number}" for number in range(draw(st.integers(1, most)))]
    return {
        name: Bounds(
            tuple(draw(st.lists(st.sampled_from(names), unique=True))),
            draw(INSTANTS),
            draw(INSTANTS),
            draw(INSTANTS),
            draw(INSTANTS),
            draw(st.integers(0, 4) | st.just(START_OF_TIME)),
        )
        for name in names
    }


def equations(graph: dict[str, Bounds], outputs: dict[str, int]) -> dict[str, LowWatermark]:
    """The right-hand sides, as DESIGN states them, for given outputs."""
    found = {}
    for name, known in graph.items():
        input_ = max(known.last, min([known.promised, known.undelivered, *(outputs[producer] for producer in known.producers)]))
        found[name] = LowWatermark(input_, min(input_, known.delivered, known.held))
    return found


def solutions(graph: dict[str, Bounds]) -> list[dict[str, LowWatermark]]:
    """All of them: every candidate is tried, so this is right and slow."""
    candidates = sorted(
        {value for known in graph.values() for value in (known.promised, known.undelivered, known.delivered, known.held, known.last)}
        | {END_OF_TIME}
    )
    found = []
    for chosen in product(candidates, repeat=len(graph)):
        outputs = dict(zip(graph, chosen, strict=True))
        right = equations(graph, outputs)
        if all(right[name].output == outputs[name] for name in graph):
            found.append(right)
    return found


@settings(max_examples=150, deadline=None)
@given(graphs())
def test_solve_finds_the_greatest_of_all_solutions(graph: dict[str, Bounds]) -> None:
    every = solutions(graph)
    found = solve(graph)
    assert found in every
    for other in every:
        assert all(other[name].input <= found[name].input and other[name].output <= found[name].output for name in graph)


@settings(max_examples=100, deadline=None)
@given(graphs(most=6), st.data())
def test_the_order_of_computations_does_not_matter(graph: dict[str, Bounds], data: st.DataObject) -> None:
    shuffled = {name: graph[name] for name in data.draw(st.permutations(list(graph)))}
    assert solve(shuffled) == solve(graph)


@settings(max_examples=100, deadline=None)
@given(graphs(most=6))
def test_no_input_goes_back_and_no_output_passes_its_input(graph: dict[str, Bounds]) -> None:
    for name, found in solve(graph).items():
        assert found.output <= found.input
        assert found.input >= graph[name].last


@settings(max_examples=100, deadline=None)
@given(graphs(most=5), st.data())
def test_a_greater_bound_lowers_nothing(graph: dict[str, Bounds], data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(graph)))
    known = graph[name]
    field = data.draw(st.sampled_from(["promised", "undelivered", "delivered", "held", "last"]))
    values = {each: getattr(known, each) for each in known.__struct_fields__}
    values[field] = data.draw(st.integers(max(0, values[field]), END_OF_TIME))
    before, after = solve(graph), solve({**graph, name: Bounds(**values)})
    for each in graph:
        assert after[each].input >= before[each].input
        assert after[each].output >= before[each].output


# What rests: nothing that it reads is active.


def test_one_that_rests_stays_and_lets_its_readers_pass() -> None:
    found = low_watermark.solve({"a": rests(bounds(last=3)), "b": bounds("a", promised=9, last=3)})
    assert found.low_watermarks == {"a": LowWatermark(3, 3), "b": LowWatermark(9, 9)}
    assert found.passed == {"a": END_OF_TIME, "b": 9}


@pytest.mark.parametrize("what", ["undelivered", "delivered", "held"])
def test_what_one_that_rests_has_still_to_do_keeps_its_readers_back(what: str) -> None:
    resting = rests(bounds(last=3, **{what: 5}))
    found = solve({"a": resting, "far": rests(bounds("a")), "b": bounds("far", promised=9)})
    assert (found["a"].input, found["far"].input, found["b"].input) == (3, START_OF_TIME, 5)


@settings(max_examples=100, deadline=None)
@given(graphs(most=5), st.data())
def test_to_rest_moves_nothing_and_lets_all_others_go_where_they_would(graph: dict[str, Bounds], data: st.DataObject) -> None:
    resting = data.draw(st.sets(st.sampled_from(sorted(graph))))
    found = low_watermark.solve({name: replace(known, rests=name in resting) for name, known in graph.items()})
    without = low_watermark.solve(graph)
    assert found.passed == without.passed
    for name, lw in found.low_watermarks.items():
        assert lw.input == (graph[name].last if name in resting else without.low_watermarks[name].input)
        assert lw.output == min(lw.input, found.passed[name])


def solved(nodes: dict[str, OutlinedNode], promises: dict[str, int], *, timeless=(), untimed=(), last=None, **known: Any) -> dict[str, int]:
    """The input low watermarks of a graph in one epoch."""
    usual: dict[str, Any] = {"undelivered": {}, "delivered": {}, "held": {}, **known}
    solver = Solver(nodes, timeless, untimed)
    solver.solve(Known(promises, **usual), {name: LowWatermark(at, at) for name, at in (last or {}).items()})  # type: ignore[arg-type]
    return {name: lw.input for name, lw in solver.solution.items()}


CHAIN = {"near": OutlinedNode((), ("quiet",)), "join": OutlinedNode(("near",), ("busy",)), "end": OutlinedNode(("join",), ())}
RING = {"a": OutlinedNode(("b",), ("quiet",)), "b": OutlinedNode(("a",), ()), "out": OutlinedNode(("b",), ("busy",))}


def test_an_idle_injector_is_left_out_near_and_far() -> None:
    assert solved(CHAIN, {"quiet": 3, "busy": 9}) == {"near": 3, "join": 3, "end": 3}
    last = {"near": 3, "join": 3, "end": 3}
    assert solved(CHAIN, {"quiet": 3, "busy": 9}, idle=["quiet"], last=last) == {"near": 3, "join": 9, "end": 9}
    assert solved(CHAIN, {"quiet": 3, "busy": 9}, idle=["quiet"], last=last, held={"near": 5}) == {"near": 3, "join": 5, "end": 5}
    assert solved(CHAIN, {"quiet": 3, "busy": 9}, idle=["busy", "quiet"], last=last) == last
    assert solved(CHAIN, {"quiet": 3, "busy": END_OF_TIME}, idle=["quiet"], last=last) == last, "no reason to move on"


def test_a_cycle_with_nothing_active_before_it_rests_whole() -> None:
    last = {"a": 3, "b": 3, "out": 3}
    assert solved(RING, {"quiet": 3, "busy": 9}, idle=["quiet"], last=last) == {"a": 3, "b": 3, "out": 9}
    assert solved(RING, {"quiet": 3, "busy": 9}, idle=["quiet"], last=last, undelivered={"a": 6}) == {"a": 3, "b": 3, "out": 6}
    assert solved(RING, {"quiet": 8, "busy": 9}, last=last) == {"a": 8, "b": 8, "out": 8}


def test_what_is_timeless_is_as_if_it_were_not_there() -> None:
    options: dict[str, Any] = {"timeless": ["quiet"], "untimed": ["near"]}
    start = int(START_OF_TIME)
    assert solved(CHAIN, {"quiet": start, "busy": 9}, **options) == {"near": start, "join": 9, "end": 9}
    held = {"near": 5}
    assert solved(CHAIN, {"quiet": start, "busy": 9}, held=held, **options) == {"near": start, "join": 9, "end": 9}
    assert solved(CHAIN, {"quiet": start, "busy": END_OF_TIME}, **options)["join"] == END_OF_TIME
    assert solved(CHAIN, {"quiet": END_OF_TIME, "busy": 9}, **options) == {"near": END_OF_TIME, "join": 9, "end": 9}


# Again and again, as epochs follow one another.


@st.composite
def histories(draw) -> tuple[dict[str, OutlinedNode], list[tuple[Known, bool]]]:
    """A graph, what is known of it epoch by epoch, and whether each epoch was committed."""
    names = [f"c{number}" for number in range(draw(st.integers(1, 6)))]
    some_names, injectors = st.lists(st.sampled_from(names), unique=True, max_size=2), ["i0", "i1"]
    nodes = {name: OutlinedNode(tuple(draw(some_names)), tuple(draw(st.lists(st.sampled_from(injectors), unique=True)))) for name in names}
    some = st.dictionaries(st.sampled_from(names), INSTANTS, max_size=2)
    idle = st.lists(st.sampled_from(injectors), unique=True)
    known = st.builds(Known, st.fixed_dictionaries(dict.fromkeys(injectors, INSTANTS)), some, some, some, idle)
    same = draw(known)  # so that most stays from epoch to epoch, as it does in a run
    changed = st.builds(lambda field, other: same._replace(**{field: getattr(other, field)}), st.sampled_from(Known._fields), known)
    return nodes, draw(st.lists(st.tuples(st.just(same) | changed | known, st.booleans()), max_size=8))


def is_resting(nodes: dict[str, OutlinedNode], name: str, known: Known) -> bool:
    """Whether, of all injectors before it that have not ended, there is one that is idle and none that is not."""
    seen, ahead = {name}, [name]
    while ahead:
        more = [producer for producer in nodes[ahead.pop()].producers if producer not in seen]
        seen.update(more)
        ahead += more
    before = {injector for each in seen for injector in nodes[each].injectors if known.promises[injector] < END_OF_TIME}
    return bool(before) and before <= set(known.idle)


@settings(max_examples=400, deadline=None)
@given(histories())
def test_what_is_solved_for_what_changed_alone_is_what_is_solved_for_all(history: tuple[dict[str, OutlinedNode], Any]) -> None:
    nodes, epochs = history
    solver, last = Solver(nodes), dict[str, LowWatermark]()
    for known, committed in epochs:
        resting = {name for name in nodes if is_resting(nodes, name, known)}
        whole = solve(
            {
                name: Bounds(
                    node.producers,
                    min([known.promises[injector] for injector in node.injectors if injector not in known.idle], default=END_OF_TIME),
                    known.undelivered.get(name, END_OF_TIME),
                    known.delivered.get(name, END_OF_TIME),
                    known.held.get(name, END_OF_TIME),
                    last[name].input if name in last else START_OF_TIME,
                    name in resting,
                )
                for name, node in nodes.items()
            }
        )
        moved = solver.solve(known, last)
        assert solver.solution == whole
        assert moved == {name: lw for name, lw in whole.items() if last.get(name) != lw}
        if committed:
            last.update(moved)


def test_computations_that_nothing_reaches_are_not_solved_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = {"busy": OutlinedNode((), ("in",)), "behind": OutlinedNode(("busy",), ()), "idle": OutlinedNode((), ("quiet",))}
    solver, last, solved = Solver(nodes), dict[str, LowWatermark](), list[list[str]]()
    really = low_watermark.solve
    monkeypatch.setattr(low_watermark, "solve", lambda of: solved.append(list(of)) or really(of))
    for upto in (5, 6, 6):
        last.update(solver.solve(Known({"in": upto, "quiet": 3}, {}, {}, {}), last))  # type: ignore[dict-item]
    assert solved == [["busy", "behind", "idle"], ["busy", "behind"], []]


# Injectors.


def promised(marks: dict[str, Mark], *, last=START_OF_TIME, finished=False, idle_after=None, now=0):
    return promise(marks, last=last, finished=finished, idle_after=idle_after, now=now)


def test_an_injector_that_has_committed_nothing_promises_nothing() -> None:
    assert promised({}) == START_OF_TIME
    assert promised({}, idle_after=5, now=1_000) == START_OF_TIME


def test_the_promise_is_the_least_mark() -> None:
    assert promised({"a": Mark(7, 0), "b": Mark(5, 0), "c": Mark(9, 0)}) == 5


def test_a_finished_injector_promises_the_end_of_time() -> None:
    assert promised({"a": Mark(7, 0)}, finished=True) == END_OF_TIME
    assert promised({}, finished=True) == END_OF_TIME


def test_a_silent_partition_waits_for_ever_unless_it_may_be_idle() -> None:
    marks = {"silent": Mark(1, 0), "spoke": Mark(9, 100)}
    assert promised(marks, now=10_000) == 1
    assert promised(marks, now=101, idle_after=100) == 9


@pytest.mark.parametrize(("now", "expected"), [(99, 1), (100, 1), (101, 9)])
def test_a_partition_is_idle_when_it_was_silent_for_longer_than_the_bound(now: int, expected: int) -> None:
    assert promised({"silent": Mark(1, 0), "spoke": Mark(9, 50)}, now=now, idle_after=100) == expected


def test_when_all_partitions_are_idle_the_last_promise_stays() -> None:
    assert promised({"a": Mark(9, 0), "b": Mark(12, 0)}, last=6, now=1_000, idle_after=100) == 6


def test_a_partition_that_comes_new_or_back_does_not_take_the_promise_back() -> None:
    assert promised({"old": Mark(9, 0), "new": Mark(2, 0)}, last=8) == 8


def heard(marks: dict[str, Mark], new: dict[str, int], *, now: int, idle_after: int | None = None) -> dict[str, Mark]:
    """The marks after these partitions spoke."""
    source = SourceProgress(dict(marks))
    source.change(hear(source, new, clock=now, idle_after=idle_after), number=1)
    return source.marks


def test_the_partitions_that_spoke_move_and_no_other() -> None:
    marks = heard({"a": Mark(5, 1), "b": Mark(6, 1)}, {"a": 8, "c": 3}, now=2)
    assert marks == {"a": Mark(8, 2), "b": Mark(6, 1), "c": Mark(3, 2)}


def test_no_mark_is_taken_back_but_it_is_heard() -> None:
    assert heard({"a": Mark(5, 1)}, {"a": 4}, now=2) == {"a": Mark(5, 2)}


def test_to_hear_a_source_changes_nothing_before_a_commit() -> None:
    source = SourceProgress({"a": Mark(5, 1)})
    change = hear(source, {"a": 8}, clock=2, idle_after=None)
    assert source.marks == {"a": Mark(5, 1)}
    assert change.marks == {"a": Mark(8, 2)}


def test_partitions_that_are_idle_are_forgotten_when_another_speaks() -> None:
    assert heard({"a": Mark(5, 1), "b": Mark(6, 3)}, {"c": 9}, now=5, idle_after=3) == {"b": Mark(6, 3), "c": Mark(9, 5)}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.dictionaries(st.sampled_from("abc"), st.integers(0, 20)), st.integers(0, 5)), max_size=8))
def test_a_promise_never_moves_back_whatever_partitions_say(spoken: list[tuple[dict[str, int], int]]) -> None:
    marks: dict[str, Mark] = {}
    now, last = 0, START_OF_TIME
    for new, later in spoken:
        now += later
        marks = heard(marks, new, now=now)
        found = promised(marks, last=last, idle_after=4, now=now)
        assert found >= last
        last = found
