"""A delivery in the driver is opened: how far it is, by its own folder or by the target itself, and whether that can be."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from millstream.core.graph import StreamPlan
from millstream.delivery import Delivery
from millstream.errors import LogError
from millstream.target import DeliveryContext
from millstream.targets.belonging import destination, keep_destination
from millstream.targets.connection import Connection, blaming
from millstream.targets.driver import DeliverySteps
from millstream.targets.steps import Steps, TargetSteps, check_reach, ways_out


def open_delivery(
    delivery: Delivery, stream: StreamPlan, folder: Path, *, fence: int, delivered: int, newest: int
) -> tuple[DeliveryContext, Connection, DeliverySteps]:
    """After the first commit of the fence: from here on an older run delivers nothing. The commits say `delivered` and `newest`."""
    name, target = delivery.name, delivery.target
    steps = Steps(folder, fence=fence, durable=target.numbered and not target.transactional)
    if target.transactional:
        steps.check_there(name, delivered=delivered)
    else:
        steps.check(name, delivered=delivered, newest=newest)
    context = DeliveryContext(name, stream.name, stream.value_type, steps.identity, fence)
    with blaming(name, target), ExitStack() as undo:
        undo.callback(steps.close)
        connection = Connection(target, context)
        undo.callback(connection.close)
        if target.transactional:
            of_target = _steps_of_target(delivery, connection, steps, delivered=delivered, newest=newest)
            steps.close()
        undo.pop_all()
    return context, connection, of_target if target.transactional else steps


def _steps_of_target(delivery: Delivery, connection: Connection, steps: Steps, *, delivered: int, newest: int) -> TargetSteps:
    last, place, name = connection.last_step(), delivery.target.describe(), delivery.name
    to = destination(steps.folder, place, delivered=delivered)
    if last is None and delivered > to.begins:
        raise LogError(
            f"{place} has nothing of what delivery {name!r} has delivered, up to epoch {delivered}: it was deleted, or something else "
            f"is in its place; {ways_out(name)}"
        )
    found = TargetSteps(last, begins=to.begins)
    check_reach(name, place, before=found.position, after=found.position, recorded=delivered, newest=newest)
    keep_destination(steps.folder, to)
    return found
