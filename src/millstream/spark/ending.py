"""Ending what a run has begun, within a time: queries are stopped, threads are joined, and what was given up is named."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Protocol

from py4j.protocol import Py4JError, Py4JJavaError

QUERY_TIMEOUT = 30.0  # seconds for a query to leave the batch that it is in
JOIN_TIMEOUT = 10.0  # seconds for threads that have been told to end


class StoppableQuery(Protocol):
    def stop(self) -> None: ...


def join_all(threads: Iterable[threading.Thread], seconds: float) -> list[str]:
    """Wait for threads that were told to end, together no longer than this; returns the names of those that still run."""
    deadline = time.monotonic() + seconds
    begun = [thread for thread in threads if thread.ident is not None and thread is not threading.current_thread()]
    for thread in begun:
        thread.join(max(0.0, deadline - time.monotonic()))
    return [thread.name for thread in begun if thread.is_alive()]


def stop_queries(queries: Mapping[str, StoppableQuery], seconds: float) -> list[str]:
    """Stop queries of Spark's side by side; returns those that did not stop in time.

    Spark waits for the batch that a query is in, for as long as that takes unless `spark.sql.streaming.stopTimeout` says
    otherwise; a query that was given up ends with it. What else Spark raises is raised here.
    """
    errors: dict[str, Exception] = {}

    def stop(name: str, query: StoppableQuery) -> None:
        try:
            query.stop()
        except Exception as error:
            errors[name] = error  # raised below: a thread has nobody to raise to

    threads = {
        name: threading.Thread(target=stop, args=(name, query), name=f"millstream stops {name}", daemon=True)
        for name, query in queries.items()
    }
    for thread in threads.values():
        thread.start()
    join_all(threads.values(), seconds)
    late = [name for name, thread in threads.items() if thread.is_alive()]
    for name, error in errors.items():
        if not _took_too_long(error):
            raise error
        late.append(name)
    return late


def wait_for(work: Callable[[], None], *, name: str, look: Callable[[], None], pause: float = 0.2) -> None:
    """Do something that may wait for long, in a thread, and `look` meanwhile: what that raises is raised, whatever becomes of the work."""
    errors: list[BaseException] = []

    def do() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=do, name=name, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(pause)
        look()
    for error in errors:
        raise error


def _took_too_long(error: Exception) -> bool:
    return isinstance(error, Py4JJavaError) and "java.util.concurrent.TimeoutException" in str(error)


def if_java_lives(deed: Callable[[], None]) -> None:
    """A Java process that died takes queries and lock with it; then it is its death that is told."""
    with suppress(Py4JError, ConnectionError):
        deed()
