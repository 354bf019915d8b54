"""`python -m tests.simulation.mutants`: break each rule of the protocol, and show how many seeds it takes until a law breaks.

A mutant is a patch of the product's own classes, or of the thin shell around them where the rule is kept by a shell. Each has
a profile in which what its rule is about is likelier.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from tests.simulation import broken, broken_ends, broken_outputs, broken_ranges
from tests.simulation.broken import Patch
from tests.simulation.play import simulate
from tests.simulation.profile import CALM, USUAL, Profile

MAX_SEEDS = 1_000

LANES = replace(USUAL, kill_lane=1.5, cut=1.0, give_up=1.0, power=0.0, power_at_step=0.0, disk_full=0.0, sync_error=0.0)
RUNS = replace(
    USUAL, takeover=1.0, pause=1.5, kill_driver=0.5, nested=0.06, power=0.0, power_at_step=0.0, settings=(("fold_every", 2),), kill_lane=0.1
)
POWER = replace(USUAL, power=1.0, power_at_step=0.003, kill_lane=0.1, cut=0.1, takeover=0.0)
CHECKPOINTS = replace(
    USUAL,
    settings=(("checkpoint_rows", 3), ("free_every", 0.0), ("fold_every", 2)),
    fall_back=0.7,
    give_up=0.8,
    lose_result=0.8,
    kill_driver=0.6,
    power=0.3,
)
FREEING = replace(
    USUAL,
    settings=(("checkpoint_rows", 3), ("free_every", 0.0), ("fold_every", 2), ("positions_every", 0.0), ("backlog_records", 1_000)),
    kill_driver=0.1,
    takeover=0.0,
    power=0.05,
    fall_back=0.0,
)
DEADLY = replace(
    LANES,
    settings=(("max_records", 250_000),),
    kill_lane=4.0,
    cut=3.0,
    killed_at_step=0.01,
    kill_driver=0.0,
    takeover=0.0,
    pause=0.0,
    stop=0.0,
)
DISKS = replace(USUAL, sync_error=1.0, disk_full=1.0, power=0.6, kill_lane=0.1, takeover=0.0)


@dataclass(frozen=True)
class Mutant:
    rule: str
    name: str
    patches: Callable[[], list[Patch]]
    profile: Profile = field(default=USUAL)
    unseen: str = ""  # why no seed shows it, where none of a thousand did


RANGES = replace(USUAL, ranged=100, kill_driver=0.6)
DEADLY_RANGES = replace(DEADLY, ranged=100)
OUT_OF_REACH = replace(LANES, ranged=100, unreachable=1.5, kill_driver=0.1, takeover=0.0)
SWEPT_OUT_OF_REACH = replace(
    CALM, ranged=100, unreachable=3.0, kill_lane=0.3, settings=(("orphaned_after", 0.0), ("positions_every", 0.0)), sizes=(("lanes", 2),)
)
PARTITIONS = replace(OUT_OF_REACH, partitions=3, kill_lane=0.3, cut=0.1, give_up=0.1)
RESTARTED = replace(PARTITIONS, kill_driver=1.0)
FREED_AT_ONCE = replace(CALM, settings=(("free_every", 0.0),))
FREED_AT_ONCE_BY_POWER = replace(POWER, settings=(("free_every", 0.0),))
SWEEPING = replace(USUAL, settings=(("orphaned_after", 0.0),))
SWEEPING_RUNS = replace(RUNS, settings=(("orphaned_after", 0.0),))
CROWDED = replace(CALM, nested=0.3, settings=(("orphaned_after", 0.0), ("positions_every", 0.0)))
NOTES = replace(USUAL, fall_back=0.6, kill_driver=0.8, power=0.3)
LAZY = replace(NOTES, lazy_notes=True, kill_driver=2.0, power=0.0, power_at_step=0.0)
ONLY = replace(CHECKPOINTS, swarm=False, kill_driver=0.0, power=0.0, fall_back=0.0, takeover=0.0, disk_full=0.0, sync_error=0.0)
SYNCING = replace(ONLY, power=0.3, give_up=0.0, lose_result=0.0)
# Two attempts return, Spark takes the first, and the next batch begins in the process of the second, whose pages lie otherwise:
# rows came and went while the first ran, and the second knows only what was left of them.
TWO_RESULTS = replace(
    ONLY,
    settings=(
        ("checkpoint_rows", 5),
        ("free_every", 0.0),
        ("fold_every", 2),
        ("backlog_records", 4),
        ("positions_every", 1e3),
        ("max_records", 2),
    ),
    sizes=(("buckets", 1), ("lanes", 1), ("rows_per_page", 1), ("pages_per_merge", 2), ("keys", 16)),
    lose_result=2.0,
    late_result=4.0,
    give_up=0.0,
    kill_lane=0.0,
    cut=0.0,
    hang=0.0,
    stop=0.0,
)
# Of a few faults, each in every seed: whatever else goes wrong hides what these are about.
STARTING = replace(CALM, takeover=3.0, nested=0.15, settings=(("fold_every", 2),), steps=250)
GIVEN_UP = replace(CALM, give_up=1.0, late_result=2.0, cut=1.0, settings=(*CHECKPOINTS.settings, ("max_records", 2)), sizes=(("lanes", 1),))
CUT_OFF = replace(CALM, cut=1.0, kill_driver=0.2)
ABORTED_RANGES = replace(CALM, ranged=100, kill_lane=4.0, cut=3.0, settings=DEADLY.settings)
AWAY = replace(CALM, ranged=100, unreachable=1.5, kill_lane=0.3)
OVERTAKEN = replace(CALM, takeover=3.0, pause=1.5, kill_lane=2.0, settings=CHECKPOINTS.settings)
TWO_WRITERS = replace(CALM, kinds=("table",), takeover=1.0, pause=1.0, nested_at=": create", turns_nested=(30, 100, 300))
# Most epochs are of several lanes, so that one is lost and comes back while others work.
SEVERAL_LANES = replace(
    CALM,
    give_up=1.0,
    kill_lane=0.5,
    hang=0.1,
    settings=(("max_records", 250_000), ("checkpoint_rows", 3), ("linger", 5.0), ("lane_timeout", 100.0)),
    sizes=(("lanes", 3), ("buckets", 8), ("keys", 16), ("records_per_part", 65_536)),
)
HANGING = replace(LANES, hang=0.3, kill_driver=0.1, takeover=0.0, settings=(("lane_timeout", 20.0),))
LITTLE_MEMORY = replace(USUAL, sizes=(("memory", 2_000), ("rows_per_page", 1)))
ENDS = replace(RUNS, upkeep=0.6, kill_writer=0.6)
TABLES = replace(ENDS, kinds=("table",))
FILES = replace(ENDS, kinds=("files",), killed_at_step=0.01)
UNSYNCED_NOTES = replace(LAZY, power=0.15, kill_driver=0.2, takeover=0.0, killed_at="sync notes/")
SLOW_STEPS = replace(CALM, kinds=("function",), killed_at="a step was written")
IDLE = replace(FREEING, settings=(*FREEING.settings, ("checkpoint_every", 2.0)), late_result=1.0)
NOT_KEPT = replace(FREEING, unkept=True, kill_driver=0.5)

MUTANTS = [
    Mutant("1", "first commits of fences are merged away", broken.forget_first_commits, RUNS),
    Mutant("2", "a starting run does not look for snapshots afterwards", broken.claim_without_a_second_look, STARTING),
    Mutant("3", "a number that is taken counts as committed", broken.believe_a_taken_number, RUNS),
    Mutant("3", "the epoch is committed under the next number", broken.commit_under_the_next_number, RUNS),
    Mutant("3", "a lost answer is not read back", broken.give_up_on_a_lost_answer, replace(USUAL, lost_answer=1.0)),
    Mutant("4", "a missing number is the end", broken.a_gap_is_the_end, RUNS),
    Mutant("4", "somebody is woken before the folder is synced", broken.wake_before_the_folder_is_synced, POWER),
    Mutant("5", "an older attempt is admitted", broken.admit_older_attempts, GIVEN_UP),
    Mutant("6", "a lane that lost its planner returns normally", broken.return_when_the_planner_is_lost, CUT_OFF),
    Mutant("6", "a lane that lost its planner joins again", broken.join_again_in_the_same_attempt, LANES),
    Mutant("7", "redo skips an epoch", broken.redo_skips_an_epoch, LANES),
    Mutant("7", "a plan does not name what to redo", broken.redo_only_at_the_join, LANES),
    Mutant("8", "a new attempt counts as the one that ran", broken.a_new_attempt_counts_as_the_one_that_ran, SEVERAL_LANES),
    Mutant("8", "a report stands and the plan is given again", broken.a_report_stands_and_the_plan_is_given_again, LANES),
    Mutant("8", "reports of closed connections are read", broken.reports_of_closed_connections, LANES),
    Mutant("8", "a commit before all reports", broken_ends.commit_before_all_reports, LANES),
    Mutant("9", "an abort leaves lanes as they are", broken.an_abort_leaves_lanes_as_they_are, DEADLY),
    Mutant("9", "an abort loses its parts", broken.an_abort_loses_its_parts, DEADLY),
    Mutant("9", "a lane that hangs is waited for", broken.wait_for_a_lane_that_hangs, HANGING),
    Mutant("9", "any word of a lane is progress", broken.any_word_of_a_lane_is_progress, HANGING),
    Mutant("9", "a lane that is lost is waited for", broken.wait_for_a_lane_that_is_lost, HANGING),
    Mutant("10", "a lane is told to checkpoint in an open epoch", broken.checkpoint_in_an_open_epoch, CHECKPOINTS),
    Mutant("11", "held rows are kept over any checkpoint", broken.held_rows_are_always_kept, CHECKPOINTS),
    Mutant("11", "held rows are kept by epoch", broken.held_rows_are_kept_by_epoch, TWO_RESULTS),
    Mutant("12", "the disk is blamed without a look for newer commits", broken.blame_the_disk_without_a_look, OVERTAKEN),
    Mutant("13", "removed before the commit that says so", broken_ends.remove_before_the_commit, replace(RUNS, fall_back=0.5)),
    Mutant("13", "orphans are removed without a commit", broken_ends.sweep_without_a_commit, SWEEPING_RUNS),
    Mutant("13", "orphans are what no commit names yet", broken_ends.sweep_what_is_not_named_yet, SWEEPING),
    Mutant("13", "orphans are what a thread is about to feed", broken_ends.sweep_what_a_thread_is_about_to_feed, CROWDED),
    Mutant("13", "orphans may be named by the commit that frees them", broken_ends.sweep_what_is_named_just_now, SWEEPING),
    Mutant("14", "free is what the join has, not the batch before", broken_ends.free_what_the_join_has, CHECKPOINTS),
    Mutant("14", "written back is free", broken_ends.free_what_was_written_back, CHECKPOINTS),
    Mutant("14", "Spark's checkpoint is not synced at the join", broken_ends.no_sync_of_the_checkpoint, SYNCING),
    Mutant("14", "one more checkpoint before the last is proved", broken_ends.checkpoint_before_the_last_is_proved, IDLE),
    Mutant("15", "free though parts wait", broken_ends.free_what_waits, CHECKPOINTS),
    Mutant("15", "free though the log lacks it", broken_ends.free_what_the_log_has_not, CHECKPOINTS),
    Mutant(
        "15",
        "the log counts before it is synced",
        broken_outputs.the_log_counts_before_its_sync,
        FREED_AT_ONCE_BY_POWER,
    ),
    Mutant("15", "free though a delivery lacks it", broken_outputs.free_what_a_delivery_lacks, NOT_KEPT),
    Mutant("15", "commits go though a delivery lacks them", broken_outputs.drop_commits_that_a_delivery_lacks, NOT_KEPT),
    Mutant("15", "kept is what the code says now", broken_outputs.kept_is_what_the_code_says_now, NOT_KEPT),
    Mutant("15", "what is kept again was always kept", broken_outputs.what_is_kept_again_was_always_kept, NOT_KEPT),
    Mutant("16", "the log is written wherever it is", broken_outputs.write_to_the_log_wherever_it_is, ENDS),
    Mutant("16", "a table is written wherever it is", broken_outputs.write_to_a_table_wherever_it_is, TABLES),
    Mutant("16", "writers of a table do not conflict", broken_outputs.every_writer_of_a_table_has_a_name_of_its_own, TWO_WRITERS),
    Mutant("16", "a table counts before it is synced", broken_outputs.a_table_counts_before_its_sync, replace(POWER, kinds=("table",))),
    Mutant("17", "a target is called without a look", broken_outputs.call_without_a_look, ENDS),
    Mutant("17", "files are renamed without a look", broken_outputs.rename_without_a_look, FILES),
    Mutant("17", "a start forgets the open step", broken_outputs.forget_the_open_step, replace(USUAL, killed_at_step=0.03)),
    Mutant("17", "a step is repeated without its range", broken_outputs.a_step_without_its_range, SLOW_STEPS),
    Mutant("18", "notes are taken in any order", broken_ends.take_notes_in_any_order, NOTES),
    Mutant("18", "a note is taken twice", broken_ends.take_a_note_twice, NOTES),
    Mutant(
        "18",
        "a note is known before its sync",
        broken_ends.a_note_is_known_before_its_sync,
        UNSYNCED_NOTES,
    ),
    Mutant("18", "Spark's plan is not synced before the note", broken_ends.no_sync_of_what_spark_planned, replace(NOTES, power=1.0)),
    Mutant("18", "a note keeps the parts of another program", broken_ends.notes_as_another_program_dealt_them, LAZY),
    Mutant("19", "a report comes before the sync", broken_ends.report_before_the_sync, POWER),
    Mutant("19", "a new segment's entry is not synced", broken_ends.no_sync_of_a_new_segments_entry, POWER),
    Mutant("19", "a writer goes on after an error", broken_ends.write_on_after_an_error, DISKS),
    Mutant("19", "commits go before the snapshot is durable", broken_ends.remove_commits_before_the_snapshot_is_durable, POWER),
    Mutant("19", "commits go before they are merged", broken_ends.remove_commits_before_they_are_merged, RUNS),
    Mutant("-", "readers by number", broken_ends.readers_by_number, USUAL),
    Mutant("-", "an epoch is due for an absent lane", broken_ends.due_for_absent_lanes, LANES),
    Mutant("20", "an abort loses its ranges", broken_ranges.an_abort_loses_its_ranges, ABORTED_RANGES),
    Mutant("20", "positions before what was read", broken_ranges.positions_before_what_was_read, DEADLY_RANGES),
    Mutant("20", "sources are given from the beginning", broken_ranges.given_from_the_beginning, RANGES),
    Mutant("20", "ranges in any order", broken_ranges.ranges_of_an_injector_in_any_order, RANGES),
    Mutant("20", "what is out of reach is dropped", broken_ranges.what_is_out_of_reach_is_dropped, AWAY),
    Mutant("20", "what is out of reach counts as read", broken_ranges.what_is_out_of_reach_counts_as_read, OUT_OF_REACH),
    Mutant("20", "what comes after what is out of reach is kept", broken_ranges.what_comes_after_it_is_kept, OUT_OF_REACH),
    Mutant("20", "batches before the pieces in front of them", broken_ranges.batches_before_the_pieces_in_front_of_them, RANGES),
    Mutant("20", "opened before lanes have read", broken_ranges.opened_before_lanes_have_read, OUT_OF_REACH),
    Mutant("20", "opened without what lanes have read", broken_ranges.opened_without_what_lanes_have_read, OUT_OF_REACH),
    Mutant("20", "pieces of a commit count once", broken_ranges.pieces_of_a_commit_count_once, RANGES),
    Mutant("13", "orphans are what lanes write to", broken_ranges.orphans_are_what_lanes_write_to, SWEPT_OUT_OF_REACH),
    Mutant("21", "nothing holds the promise", broken_ranges.nothing_holds_the_promise, PARTITIONS),
    Mutant("21", "only what waits holds the promise", broken_ranges.only_what_waits_holds_the_promise, PARTITIONS),
    Mutant("21", "what an epoch reads does not hold", broken_ranges.what_an_epoch_reads_does_not_hold, PARTITIONS),
    Mutant("21", "whoever is deaf has read all", broken_ranges.whoever_is_deaf_has_read_all, PARTITIONS),
    Mutant("21", "a start promises before it has heard", broken_ranges.a_start_promises_before_it_has_heard, RESTARTED),
    Mutant("21", "what was given is read", broken_ranges.what_was_given_is_read, PARTITIONS),
    Mutant("21", "whoever is deaf is silent", broken_ranges.whoever_is_deaf_is_silent, PARTITIONS),
    Mutant("21", "what waits is silent", broken_ranges.what_waits_is_silent, PARTITIONS),
    Mutant("-", "parts are taken twice", broken_ends.parts_taken_twice, USUAL),
    Mutant("-", "a page goes without being written", broken_ends.a_page_goes_without_being_written, LITTLE_MEMORY),
    Mutant("-", "low watermarks forget what waits", broken_ends.forget_what_waits_for_others, LANES),
    Mutant("-", "a commit frees what it names", broken_ends.frames_named_and_freed_at_once, FREED_AT_ONCE),
    Mutant("-", "redo begins where commits are gone", broken_ends.redo_from_the_last_checkpoint, FREEING),
]


@contextmanager
def patched(mutant: Mutant) -> Iterator[None]:
    before: list[tuple[Any, str, Any]] = []
    try:
        for owner, name, new in mutant.patches():
            before.append((owner, name, owner.__dict__[name]))
            setattr(owner, name, new)
        yield
    finally:
        for owner, name, old in reversed(before):
            setattr(owner, name, old)


def seeds_until_caught(mutant: Mutant, at_most: int = MAX_SEEDS, *, first: int = 10_000) -> tuple[int | None, str]:
    """How many seeds it took, and what broke. Without the mutant, the same seed must hold: else it is not the mutant's doing."""
    for seed in range(first, first + at_most):
        with patched(mutant):
            try:
                broken: BaseException | None = simulate(seed, mutant.profile).broken
            except Exception as error:  # an assertion of the product, met where no law is asked
                broken = error
        if broken is not None:
            control = simulate(seed, mutant.profile).broken
            assert control is None, f"seed {seed} breaks without {mutant.name!r}, too: {control}"
            return seed - first + 1, f"{type(broken).__name__}: {broken}"
    return None, ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="mutants whose name or rule contains this")
    parser.add_argument("--seeds", type=int, default=MAX_SEEDS)
    arguments = parser.parse_args()
    missed = []
    print(f"{'rule':>4}  {'seeds':>5}  {'s':>5}  mutant, and what broke")
    for mutant in MUTANTS:
        if arguments.only not in (mutant.rule, "") and arguments.only not in mutant.name:
            continue
        began = time.perf_counter()
        seeds, why = seeds_until_caught(mutant, arguments.seeds)
        if seeds is None and not mutant.unseen:
            missed.append(mutant.name)
        print(
            f"{mutant.rule:>4}  {seeds or 'NONE':>5}  {time.perf_counter() - began:5.1f}  {mutant.name}: {why[:110] or mutant.unseen}",
            flush=True,
        )
    print(f"{len(MUTANTS)} mutants; not caught: {missed or 'none'}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
