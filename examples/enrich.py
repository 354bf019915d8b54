from dataclasses import dataclass
from datetime import datetime

import millstream as ms


@dataclass(frozen=True)
class Profile:
    id: int
    country: str
    changed: datetime


@dataclass(frozen=True)
class Click:
    user: str
    page: str
    at: datetime


@dataclass(frozen=True)
class Enriched:
    page: str
    country: str


class Enrich(ms.Computation[Profile | None]):
    """Every click with the country of its user, as it is known when the click comes; clicks of unknown users apart."""

    enriched: ms.Output[Enriched]
    unknown: ms.Output[Click]

    def process_record(self, record: ms.Record[Profile | Click]) -> None:
        match record.value:
            case Profile() as profile:
                self.state = profile
            case Click() as click:
                if self.state is None:
                    self.unknown.produce(click, timestamp=record.timestamp)
                else:
                    self.enriched.produce(Enriched(click.page, self.state.country), timestamp=record.timestamp)


topology = ms.Topology("enrichment")
profiles = topology.inject(
    "profiles",
    ms.files("profiles/*.jsonl", Profile),
    key=lambda p: str(p.id),
    timestamp=lambda p: p.changed,
    low_watermark=ms.BoundedDisorder(ms.SECOND),
)
clicks = topology.inject(
    "clicks", ms.files("clicks/*.jsonl", Click), key=lambda c: c.page, timestamp=lambda c: c.at, low_watermark=ms.BoundedDisorder(ms.SECOND)
)
enrich = Enrich()
topology.compute("enrich", enrich, errors=ms.Errors.DEAD_LETTER).reads(profiles, clicks.by(lambda click: click.user))
topology.deliver("enriched", enrich.enriched, ms.delta("enriched"))
topology.deliver("dead letters", topology.dead_letters, ms.delta("dead"))
