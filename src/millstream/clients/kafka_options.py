"""What is said to librdkafka: whose options are whose, and that no secret is written down."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from millstream.errors import TopologyError
from millstream.secret import Secret

OptionValue = str | int | bool | Secret

# What every client is told by Millstream itself, with what to do instead. Sources and targets each add their own.
OWNED = {
    "bootstrap.servers": "give servers=",
    "metadata.broker.list": "give servers=",
    "logger": "lines of librdkafka go to logging.getLogger('millstream'), at the level DEBUG",
    "log_level": "set the level of logging.getLogger('millstream')",
}
SECRET = re.compile(r"password|passphrase|secret|(^|\.)key\.pem$|^sasl\.oauthbearer\.config$|^sasl\.jaas\.config$")
SERVER = re.compile(r"(?:(?:SASL_)?(?:PLAINTEXT|SSL)://)?(?:\[[0-9A-F:.]+\]|[\w.-]+):(\d{1,5})", re.ASCII | re.IGNORECASE)
EXAMPLE = 'servers="kafka-1:9092,kafka-2:9092"'
DOCUMENTED = "the names and values are those of librdkafka's CONFIGURATION.md"
LAST = "millstream.last"  # no option of librdkafka: where it is the one that is refused, all before it are taken


@dataclass(frozen=True)
class KafkaOptions:
    """As they were given: secrets by where they are. What they say is not shown, for a name may hide what it holds."""

    given: Mapping[str, OptionValue] = field(repr=False)

    def revealed(self) -> dict[str, Any]:
        """As librdkafka wants them, with the secrets as they are now."""
        return {name: value.reveal() if isinstance(value, Secret) else value for name, value in self.given.items()}

    def secrets(self) -> list[str]:
        """What must not be in any message."""
        return [found for value in self.given.values() if isinstance(value, Secret) and (found := value.reveal())]


def options(call: str, given: Any, owned: Mapping[str, str], example: str) -> KafkaOptions:
    """Options of librdkafka, by their names there. Those that are `owned` are refused, with what it says there."""
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise TopologyError(f"{call}(options=...): give a dictionary of options of librdkafka, such as {{{example}}}")
    for name, value in given.items():
        if name in OWNED or name in owned or name.endswith("_cb"):
            why = {**OWNED, **owned}.get(name, "callbacks of librdkafka are Millstream's own")
            raise TopologyError(f"{call}: the option {name} is not yours to set: {why}")
        if SECRET.search(name) and not isinstance(value, Secret):
            raise TopologyError(
                f'{call}: the option {name} is a secret, and must not stand in a program; say where it is: ms.secret(env="...") or '
                f'ms.secret(file="...")'
            )
        if not isinstance(value, str | int | bool | Secret):
            raise TopologyError(f"{call}: the option {name} is a {type(value).__name__}; give text, a number, True or False, or ms.secret")
    _check_known(call, {name: value for name, value in given.items() if not isinstance(value, Secret)})
    return KafkaOptions(dict(given))


def _check_known(call: str, given: Mapping[str, str | int | bool]) -> None:
    """Refuses names and values that librdkafka does not take. Makes no client; what only shows in one, `check` finds."""
    import confluent_kafka

    try:
        confluent_kafka.Producer({**given, LAST: ""})
    except confluent_kafka.KafkaException as error:
        if LAST not in (text := error.args[0].str()):
            raise TopologyError(f"{call}(options=...): {text}; {DOCUMENTED}") from None


def servers(call: str, given: Any) -> str:
    """Some brokers of the cluster, in an order that does not depend on how they were given."""
    named = given.split(",") if isinstance(given, str) else list(given) if isinstance(given, Sequence) else []
    if not named or not all(isinstance(each, str) and _is_server(each.strip()) for each in named):
        # What was given is not repeated: it may be an address with a password in it.
        raise TopologyError(f"{call}(servers=...): give one or more brokers by host and port, such as {EXAMPLE}")
    return ",".join(sorted({each.strip() for each in named}))


def _is_server(given: str) -> bool:
    found = SERVER.fullmatch(given)
    return found is not None and 0 < int(found[1]) < 1 << 16


def topic(call: str, given: Any) -> str:
    if not isinstance(given, str) or not re.fullmatch(r"[\w.-]{1,249}", given, re.ASCII) or given in (".", ".."):
        raise TopologyError(f"{call}({given!r}): give the name of a topic: at most 249 letters, digits, '.', '_' and '-'")
    return given
