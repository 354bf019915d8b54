"""Zeitgeist: its traffic, each of its computations, and the whole against the truth."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import pytest
from rich.console import Console

import millstream as ms
from millstream.testing import Driver
from millstream.zeitgeist.clock import DAY, HOUR, HOURS_OF_WEEK, START, WEEK, hour_of_week, simulated
from millstream.zeitgeist.computations import FADE, SILENCE, Comparison, Finding, Forecast, Slot, root
from millstream.zeitgeist.events import Anomaly, AnomalyKind, Query
from millstream.zeitgeist.picture import choose, draw
from millstream.zeitgeist.score import Score, score, table
from millstream.zeitgeist.topology import DISORDER, zeitgeist
from millstream.zeitgeist.traffic import SEED, SHIPPED, Size, Traffic, generate, read_truth

SMALL = Size(queries=8, anomalies=6)
PUNCTUAL = Size(queries=6, weeks=3, anomalies=5, late=0.0)


@dataclass(frozen=True)
class Outcome:
    counts: list[ms.Record[int]]
    forecasts: list[ms.Record[Forecast]]
    comparisons: list[ms.Record[Comparison]]
    findings: list[ms.Record[Finding]]


def run(traffic: Traffic, *, chunks: int) -> Outcome:
    """All of it, the low watermark moving after each chunk as the injector would move it."""
    zeit = zeitgeist("queries", "out")
    driver = Driver(zeit.topology)
    events = list(traffic.events())
    cuts = [number * len(events) // chunks for number in range(chunks + 1)]
    for start, end in pairwise(cuts):
        driver.send(zeit.queries, *events[start:end])
        driver.advance(low_watermark=ms.Timestamp(int(traffic.at[:end].max())) - DISORDER)
    driver.finish()
    streams = zeit.per_second.counts, zeit.model.forecasts, zeit.detector.comparisons, zeit.detector.findings
    return Outcome(*(sorted(driver.read(stream), key=lambda r: (r.key, int(r.timestamp))) for stream in streams))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def traffic() -> Traffic:
    return generate()


@pytest.fixture(scope="module")
def outcome(traffic: Traffic) -> Outcome:
    return run(traffic, chunks=20)


# The clock.


def test_a_second_is_a_simulated_hour() -> None:
    assert simulated(START).strftime("%A %H:%M") == "Monday 00:00"
    assert simulated(START + 30 * HOUR).strftime("%A %H:%M") == "Tuesday 06:00"
    assert hour_of_week(START + WEEK + 30 * HOUR) == 30


# The traffic.


def test_traffic_is_as_large_as_promised(traffic: Traffic) -> None:
    assert len(set(traffic.texts)) == SHIPPED.queries >= 50
    assert 300_000 <= len(traffic) <= 450_000
    assert SHIPPED.weeks * HOURS_OF_WEEK * int(HOUR) >= traffic.at.max() - int(START) > 0.99 * SHIPPED.weeks * int(WEEK)
    assert len(traffic.truth) == SHIPPED.anomalies
    assert min(anomaly.start for anomaly in traffic.truth) >= START + 2 * WEEK


def test_traffic_depends_on_its_seed_alone() -> None:
    one, same, other = generate(1, SMALL), generate(1, SMALL), generate(2, SMALL)
    assert np.array_equal(one.at, same.at)
    assert np.array_equal(one.text, same.text)
    assert one.truth == same.truth
    assert one.truth != other.truth


def test_traffic_has_daily_and_weekly_rhythm(traffic: Traffic) -> None:
    counts = np.zeros(traffic.rates.shape)
    np.add.at(counts, (traffic.text, (traffic.at - int(START)) // int(HOUR)), 1)
    first, second = counts[:10, :HOURS_OF_WEEK], counts[:10, HOURS_OF_WEEK : 2 * HOURS_OF_WEEK]
    for busy, week_after in zip(first, second, strict=True):
        assert np.corrcoef(busy, week_after)[0, 1] > 0.5 > 0 > np.corrcoef(busy, np.roll(week_after, 12))[0, 1]
    days = counts[:, : 2 * HOURS_OF_WEEK].reshape(len(counts), 2, 7, 24).sum(axis=(1, 3))
    liking = days[:, 5:].mean(axis=1) / days[:, :5].mean(axis=1)
    assert liking.min() < 0.75
    assert liking.max() > 1.3


def test_traffic_is_disordered_and_a_little_of_it_late(traffic: Traffic) -> None:
    newest = np.maximum.accumulate(traffic.at)
    assert np.mean(traffic.at < newest) > 0.5
    assert 0.003 < np.mean(traffic.at < newest - int(DISORDER)) < 0.006
    punctual = generate(1, PUNCTUAL)
    assert not np.any(punctual.at < np.maximum.accumulate(punctual.at) - int(DISORDER))


def test_anomalies_change_the_traffic(traffic: Traffic) -> None:
    for anomaly in traffic.truth:
        query, start, end = traffic.texts.index(anomaly.query), (anomaly.start - START) // HOUR, (anomaly.end - START) // HOUR
        of_query = traffic.at[traffic.text == query]
        real = np.sum((of_query >= int(anomaly.start)) & (of_query < int(anomaly.end)))
        usual = traffic.rates[query, start:end].sum()
        assert real > 2.5 * usual if anomaly.kind is AnomalyKind.SPIKE else real < 0.25 * usual


def test_files_hold_the_traffic_in_order_of_arrival(tmp_path: Path) -> None:
    traffic = generate(3, PUNCTUAL)
    traffic.write(tmp_path, files=7)
    times = [path.stat().st_mtime for path in sorted(tmp_path.glob("*.jsonl"))]
    assert all(later - earlier > 0.5 for earlier, later in pairwise(times)), "Spark takes them in the order of their milliseconds"
    lines = [line for file in sorted(tmp_path.glob("*.jsonl")) for line in file.read_text().splitlines()]
    assert [msgspec.json.decode(line, type=Query) for line in lines] == list(traffic.events())
    assert len(list(tmp_path.glob("*.jsonl"))) == 7
    assert read_truth(tmp_path) == traffic.truth


def test_too_many_anomalies_are_refused() -> None:
    with pytest.raises(ValueError, match="no room for one more"):
        generate(1, Size(queries=1, weeks=3, anomalies=60))


def test_more_queries_than_there_are_texts_are_refused() -> None:
    with pytest.raises(ValueError, match="ask for fewer"):
        generate(1, Size(queries=1000))


# Counts per second.


def query(seconds: float) -> Query:
    return Query("tea", ms.to_datetime(START + int(seconds * 1_000_000) * ms.MICROSECOND))


def counts(*, at: list[float], until: int | None) -> dict[int, int]:
    """The counts by second, when the low watermark went to `until`, and then to the end if that is None."""
    zeit = zeitgeist("queries", "out")
    driver = Driver(zeit.topology)
    driver.send(zeit.queries, *map(query, at))
    if until is None:
        driver.finish()
    else:
        driver.advance(low_watermark=START + until * ms.SECOND)
    found = driver.read(zeit.per_second.counts)
    assert len({record.timestamp for record in found}) == len(found)
    return {(record.timestamp - START) // ms.SECOND: record.value for record in found}


def test_seconds_are_counted_when_the_low_watermark_has_passed_them() -> None:
    assert counts(at=[1.5, 0.2, 0.9, 2.0], until=2) == {0: 2, 1: 1}


def test_silence_is_counted_as_zero() -> None:
    assert counts(at=[0.5, 3.5], until=6) == {0: 1, 1: 0, 2: 0, 3: 1, 4: 0, 5: 0}


def test_silence_is_counted_for_a_while_only() -> None:
    a_day = SILENCE // ms.SECOND
    assert counts(at=[0.5], until=1000) == {0: 1, **dict.fromkeys(range(1, a_day + 1), 0)}
    assert counts(at=[0.5, 100.5], until=101) == {0: 1, **dict.fromkeys(range(1, a_day + 1), 0), 100: 1}


def test_nothing_is_counted_after_the_end_of_the_input() -> None:
    assert counts(at=[0.5, 3.5], until=None) == {0: 1, 1: 0, 2: 0, 3: 1}


def test_nothing_is_kept_of_a_query_that_fell_silent() -> None:
    zeit = zeitgeist("queries", "out")
    driver = Driver(zeit.topology)
    driver.send(zeit.queries, query(0.5))
    driver.advance(low_watermark=START + 2 * DAY)
    assert driver.keys("per-second") == 0


# The model.


def learned(*weeks: int) -> Slot:
    slot = Slot()
    for count in weeks:
        slot.learn(root(count))
    return slot


def test_a_forecast_takes_two_weeks() -> None:
    assert learned(20).forecast() is None
    forecast = learned(20, 20).forecast()
    assert forecast is not None
    assert forecast.at(0) == pytest.approx(20)
    assert forecast.at(-1) < 20 < forecast.at(1)


def test_older_weeks_fade() -> None:
    slot = learned(10, 40)
    assert slot.mean == pytest.approx((FADE * root(10) + root(40)) / (FADE + 1))
    assert learned(10, 10, 10, *[40] * 20).mean == pytest.approx(root(40), rel=0.01)


def test_a_query_that_scatters_more_is_forecast_with_more_caution() -> None:
    steady, wild = learned(20, 21, 20, 19, 20).forecast(), learned(20, 60, 5, 40, 2).forecast()
    assert steady is not None
    assert wild is not None
    assert wild.deviation > 1.5 * steady.deviation


def test_a_forecast_knows_that_few_weeks_prove_little() -> None:
    early, later = learned(20, 20).forecast(), learned(*[20] * 10).forecast()
    assert early is not None
    assert later is not None
    assert early.deviation > later.deviation > 0.5


def weekly(*weeks: int) -> list[float]:
    """What the model forecasts for the same hour of week after week."""
    zeit = zeitgeist("queries", "out")
    driver = Driver(zeit.topology)
    for number, count in enumerate(weeks):
        driver.put(zeit.per_second.counts, count, key="tea", timestamp=START + number * WEEK)
    return [record.value.at(0) for record in driver.read(zeit.model.forecasts)]


def test_each_count_is_forecast_from_the_weeks_before_it() -> None:
    assert weekly(20, 20, 30, 20) == [pytest.approx(20), pytest.approx(24.0, abs=1.0)]


def test_a_spike_does_not_become_what_is_expected() -> None:
    assert weekly(20, 20, 2000, 20)[-1] < 40


# The detector.


def findings(pattern: str) -> list[tuple[str, int, int, bool]]:
    """What is found when 20 are forecast for every hour, and hours come as usual `.`, high `^` or low `_`."""
    zeit = zeitgeist("queries", "out")
    driver = Driver(zeit.topology)
    for hour, sign in enumerate(pattern):
        moment = START + hour * HOUR
        driver.put(zeit.per_second.counts, {".": 20, "^": 60, "_": 1}[sign], key="tea", timestamp=moment)
        driver.put(zeit.model.forecasts, Forecast(root(20), 0.6), key="tea", timestamp=moment)
    driver.finish()
    found = [record.value for record in driver.read(zeit.detector.findings)]
    return [(f.kind.value, (f.start - START) // HOUR, (f.end - START) // HOUR, f.over) for f in found]


@pytest.mark.parametrize("pattern", ["....", "..^.....", "..^^^.....^^^...", "..^_^_^_^_....", "_..._..._..._..."])
def test_few_hours_that_differ_are_not_reported(pattern: str) -> None:
    assert findings(pattern) == []


def test_a_finding_is_told_when_it_is_sure_and_when_it_is_over() -> None:
    assert findings("..^^^^^^......") == [("spike", 2, 6, False), ("spike", 2, 8, True)]
    assert findings("..____........") == [("dip", 2, 6, False), ("dip", 2, 6, True)]


def test_enough_hours_within_the_window_are_a_finding() -> None:
    assert findings("..^.^^.^......")[0] == ("spike", 2, 8, False)
    assert findings("..^..^^..^....") == []


def test_what_is_not_over_when_the_input_ends_is_told_once() -> None:
    assert findings("..^^^^^") == [("spike", 2, 6, False)]


def test_a_dip_may_follow_a_spike() -> None:
    assert [kind for kind, _, _, _ in findings("..^^^^^________......")] == ["spike", "spike", "dip", "dip"]


# The score.


def anomaly(start: int, end: int, *, text: str = "tea", kind: AnomalyKind = AnomalyKind.SPIKE) -> Anomaly:
    return Anomaly(text, kind, START + start * HOUR, START + end * HOUR)


def finding(start: int, end: int, *, text: str = "tea", kind: AnomalyKind = AnomalyKind.SPIKE, over: bool = True) -> ms.Record[Finding]:
    return ms.Record(text, Finding(kind, START + start * HOUR, START + end * HOUR, over), START + (end - 1) * HOUR)


def test_what_was_told_twice_is_one_finding() -> None:
    result = score([anomaly(10, 20)], [finding(10, 20), finding(10, 14, over=False)])
    assert [found.anomaly for found in result.found] == [anomaly(10, 20)]
    assert result.found[0].sure == START + 14 * HOUR
    assert (result.precision, result.recall) == (1.0, 1.0)


def test_findings_count_once_and_must_be_of_the_same_query_kind_and_time() -> None:
    truth = [anomaly(10, 20), anomaly(50, 60)]
    twice = score(truth, [finding(10, 13), finding(15, 22)])
    assert (twice.precision, twice.recall) == (1.0, 0.5)
    for wrong in (finding(10, 20, text="coffee"), finding(10, 20, kind=AnomalyKind.DIP), finding(24, 30)):
        result = score(truth, [wrong, finding(50, 60)])
        assert (result.precision, result.recall, len(result.false)) == (0.5, 0.5, 1)
    assert (score(truth, []).precision, score(truth, []).recall) == (0.0, 0.0)


def shown(result: Score) -> str:
    console = Console(width=120)
    with console.capture() as captured:
        console.print(table(result))
    return captured.get()


def test_the_table_shows_hits_misses_and_false_alarms() -> None:
    text = shown(score([anomaly(10, 20), anomaly(50, 60, text="coffee")], [finding(12, 20), finding(90, 99, kind=AnomalyKind.DIP)]))
    assert "Mon 01 Jan 10:00 to 20:00" in text
    assert "missed" in text
    assert "nothing" in text
    assert "2 put in, 1 found, 1 false: precision 0.50, recall 0.50" in text


# The whole.


def test_the_shipped_traffic_is_understood(traffic: Traffic, outcome: Outcome) -> None:
    result = score(traffic.truth, outcome.findings)
    assert min(result.precision, result.recall) >= 0.9, shown(result)
    assert len(outcome.counts) + len(outcome.forecasts) + len(outcome.comparisons) < 250_000


@pytest.mark.parametrize("seed", [SEED + 1, 7, 77])
def test_other_traffic_is_understood(seed: int) -> None:
    traffic = generate(seed, SMALL)
    result = score(traffic.truth, run(traffic, chunks=10).findings)
    assert min(result.precision, result.recall) >= 0.9, shown(result)


def test_findings_do_not_depend_on_how_the_input_is_split() -> None:
    traffic = generate(5, PUNCTUAL)
    whole, parts = run(traffic, chunks=1), run(traffic, chunks=50)
    assert whole.findings == parts.findings
    assert len(whole.findings) >= 2 * PUNCTUAL.anomalies
    # A query's silence up to the end of the input is seen only by who watched it pass.
    last = START + PUNCTUAL.weeks * WEEK - 12 * HOUR
    assert [c for c in whole.comparisons if c.timestamp < last] == [c for c in parts.comparisons if c.timestamp < last]


def test_the_picture_shows_eventful_queries_and_a_quiet_one(traffic: Traffic, outcome: Outcome, tmp_path: Path) -> None:
    result = score(traffic.truth, outcome.findings)
    histories = {key: [record for record in outcome.comparisons if record.key == key] for key in traffic.texts}
    *eventful, quiet = choose(histories, result)
    assert set(AnomalyKind) == {true.kind for true in traffic.truth if true.query in eventful}
    assert quiet not in {true.query for true in traffic.truth}
    draw(tmp_path / "pictures" / "zeitgeist.png", outcome.comparisons, result)
    written = (tmp_path / "pictures" / "zeitgeist.png").read_bytes()
    assert written.startswith(b"\x89PNG")
    assert len(written) > 50_000
