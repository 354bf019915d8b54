"""Where the partitions of a Kafka source are read from when it is opened, and what is refused then."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from millstream.errors import LogError, MillstreamError, TopologyError, Unreachable
from millstream.source import Position, SourceContext
from millstream.sources.kafka_survey import (
    KafkaPartition,
    Survey,
    Surveyor,
    end_name,
    gone,
    id_name,
    lost,
    made_anew,
    missing,
    named,
)
from millstream.sources.kafka_tracks import Track
from millstream.sources.kafka_values import COLUMNS

if TYPE_CHECKING:
    from millstream.sources.kafka import KafkaSource

log = logging.getLogger("millstream")

CHECK_TIMEOUT = 10.0  # seconds that an answer may take before anything runs


class Opening(NamedTuple):
    """What a source begins with."""

    tracks: list[Track]
    away: dict[KafkaPartition, int]  # up to where those are read whose topics are not there
    ids: dict[str, str]  # of topics, also of those that are away


def check(source: KafkaSource[Any], context: SourceContext) -> None:
    """Refuses what could not be read, before anything runs."""
    where = f"injector {context.injector!r}"
    if unknown := sorted(context.columns - COLUMNS.keys()):
        raise TopologyError(f"{where}: Kafka has no column {unknown[0]!r}; it has {', '.join(sorted(COLUMNS))}")
    if context.finished:
        return  # nothing more is read
    surveyor = Surveyor(source, CHECK_TIMEOUT)
    surveyor.consumer("millstream", {}).close()  # for options that only a consumer looks at
    with surveyor.checking(where):
        survey = surveyor.survey()
    try:
        _check_there(source, survey, context.positions, _read(source, context.positions))
    except LogError as error:
        raise TopologyError(f"{where}: {error}") from None


def opened(source: KafkaSource[Any], surveyor: Surveyor, survey: Survey, positions: Mapping[str, Position]) -> Opening:
    """A track for each partition, from its position on; those without one begin where the source says, if nothing was read yet."""
    for partition, why in survey.silent.items():
        raise Unreachable(f"{source.servers}: {partition} does not answer: {why}")
    read = _read(source, positions)
    _check_there(source, survey, positions, read)
    _check_same(survey, positions, read)
    known = {partition: upto for partition, upto in read.items() if partition.topic in survey.ids}
    _check_positions(surveyor, survey, known)
    new = [partition for partition in survey.ends if partition not in known]
    begins = {partition: survey.starts[partition] for partition in new}
    if not positions:
        begins.update(_beginning(source, surveyor, survey, new))
    tracks = [Track(partition, begins[partition], survey.ends[partition], to_pin=True) for partition in new]
    for partition, upto in known.items():
        end, noted = survey.ends[partition], positions.get(end_name(partition))
        tracks.append(Track(partition, upto, end, to_pin=noted is None or end > max(upto, int(noted))))
    away = {partition: upto for partition, upto in read.items() if partition not in known}
    for topic in sorted({partition.topic for partition in away}):
        log.warning("%s: topic %r is not there any more; all that was known of it is read", source.describe(), topic)
    if source.pattern is not None and not survey.ids:
        log.warning("%s: there is none yet that fits as a whole; what comes is read from its beginning", source.describe())
    topics = {partition.topic for partition in read}
    ids = {topic: str(positions[id_name(topic)]) for topic in topics if id_name(topic) in positions}
    return Opening(tracks, away, {**ids, **{topic: found for topic, found in survey.ids.items() if found is not None}})


def _read(source: KafkaSource[Any], positions: Mapping[str, Position]) -> dict[KafkaPartition, int]:
    """Up to where partitions of the source were read."""
    placed = ((named(name), upto) for name, upto in positions.items())
    return {partition: int(upto) for partition, upto in placed if partition is not None and source.reads(partition)}


def _check_there(source: KafkaSource[Any], survey: Survey, positions: Mapping[str, Position], read: Mapping[KafkaPartition, int]) -> None:
    """A topic that is named must be there, and one of a pattern unless all that was known of it is read."""
    was_read = {partition.topic for partition in read}
    for topic in source.topics:
        if topic not in survey.ids and topic not in was_read:
            raise LogError(missing(source, topic))
    for topic in sorted(was_read - survey.ids.keys()):
        unread = _unread(topic, positions, read)
        if unread != 0 or source.pattern is None:
            raise gone(source, topic, unread)


def _check_same(survey: Survey, positions: Mapping[str, Position], read: Mapping[KafkaPartition, int]) -> None:
    for topic, known in survey.ids.items():
        if known is not None and positions.get(id_name(topic), known) != known:
            raise made_anew(topic)
    for partition in read:
        if partition.topic in survey.ids and partition not in survey.ends:
            raise LogError(f"{partition} was read before, and the topic does not have it any more. {made_anew(partition.topic)}")


def _unread(topic: str, positions: Mapping[str, Position], read: Mapping[KafkaPartition, int]) -> int | None:
    """How many records of a topic that is not there were known when it was last read, and not read; None if nobody knows."""
    found = 0
    for partition, upto in read.items():
        if partition.topic == topic:
            if (end := positions.get(end_name(partition))) is None:
                return None
            found += max(0, int(end) - upto)
    return found


def _check_positions(surveyor: Surveyor, survey: Survey, known: Mapping[KafkaPartition, int]) -> None:
    """A position may lie beyond the end while a transaction is open before it, but never beyond the log."""
    beyond = [partition for partition, upto in known.items() if upto > survey.ends[partition]]
    ends = surveyor.ends_of_all(beyond)
    for partition, upto in known.items():
        start, end = survey.starts[partition], ends.get(partition, survey.ends[partition])
        if not start <= upto <= end:
            raise lost(partition, upto, (start, end))


def _beginning(source: KafkaSource[Any], surveyor: Surveyor, survey: Survey, new: Iterable[KafkaPartition]) -> dict[KafkaPartition, int]:
    """Where a source begins that was never read."""
    if source.latest:
        return dict(survey.ends)
    if source.since is not None:
        return {**survey.ends, **surveyor.since(new, source.since)}
    return {}


def left_over(source: KafkaSource[Any], context: SourceContext) -> str | None:
    """Of a source that had ended: how much came later. Nothing is read of it, so nothing that keeps it from being asked is an error."""
    try:
        ends = Surveyor(source, CHECK_TIMEOUT).survey().ends
    except MillstreamError as error:
        return f"whether more came since is not known: {error}"
    later = sum(max(0, end - int(context.positions.get(partition.name, 0))) for partition, end in ends.items())
    if not later:
        return None
    return (
        f"about {later:,} records that came since are not read; inject them under another name, or leave out bounded=True in a new folder"
    )
