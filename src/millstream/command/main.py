"""`millstream`: run a topology, look at it, read its streams, see the demo."""

from __future__ import annotations

import importlib.util
import sys
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer
from rich.console import Console

from millstream import arguments
from millstream.command.beside import beside, has_dashboard, need_dashboard
from millstream.errors import MillstreamError, RunFailed, TopologyError
from millstream.secret import secret
from millstream.topology import Topology

app = typer.Typer(
    help="MillWheel on Spark: computations for one key at a time, exactly once, in event time.", no_args_is_help=True, add_completion=False
)
out = Console()
err = Console(stderr=True)


@app.command()
def run(
    file: Annotated[
        str, typer.Argument(metavar="FILE[:topology]", help="A Python file; the name of the topology in it, if it has several.")
    ],
    at: Annotated[Path, typer.Option(metavar="DIR", help="The folder of the run: its journal, log, state and checkpoints.")],
    until_drained: Annotated[bool, typer.Option(help="End when all inputs have ended and everything is delivered.")] = False,
    deliver_anew: Annotated[
        list[str] | None, typer.Option(metavar="DELIVERY", help="Let this delivery begin once more, with all that the log holds.")
    ] = None,
    show_spark_log: Annotated[bool, typer.Option(help="Show what Spark logs.")] = False,
) -> None:
    """Run a topology; go on where it was if the folder was used before."""
    from millstream.command.progress import watch
    from millstream.spark.options import DRAINED, Options
    from millstream.spark.run import start

    topology = load(file)
    options = Options(show_spark_log=show_spark_log)
    until = DRAINED if until_drained else None
    watch(lambda: start(topology, at=at, until=until, options=options, deliver_anew=deliver_anew or ()), shown=True)


@app.command()
def status(
    at: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run.")],
    json: Annotated[bool, typer.Option(help="As JSON, for programs.")] = False,
) -> None:
    """Low watermarks, counts, timers and lags of a run; also while it runs."""
    import msgspec

    from millstream.command.tables import show
    from millstream.log.status import status_of

    found = status_of(at)
    if json:
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(found)) + b"\n")
    else:
        show(found, out)


@app.command()
def read(
    at: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run.")],
    stream: Annotated[str, typer.Argument(help="Such as per-second.counts; status lists them.")],
    last: Annotated[int, typer.Option("--last", "-n", min=1, help="How many records.")] = 20,
) -> None:
    """The newest records of a stream as JSON lines, newest last."""
    from millstream.log.reading import newest_records

    for found in newest_records(at, stream, last):
        sys.stdout.buffer.write(found + b"\n")


@app.command()
def state(
    at: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run, on or over.")],
    computation: Annotated[str, typer.Argument(help="Such as per-second; status lists them.")],
    key: Annotated[str, typer.Argument(help="Whose state and timers are wanted.")],
    json: Annotated[bool, typer.Option(help="As JSON, for programs.")] = False,
) -> None:
    """What a computation keeps for a key: asked of the run that is on, else read from its folder, which starts Spark."""
    import msgspec

    from millstream.command.looking import kept_at
    from millstream.command.tables import show_kept

    found = kept_at(at, computation, key)
    if json:
        sys.stdout.buffer.write(msgspec.json.encode(found) + b"\n")
    else:
        show_kept(found, out)


@app.command()
def dashboard(
    at: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run, on or over.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 8270,
    host: Annotated[str, typer.Option(help="Another address than this machine's own needs a token.")] = "127.0.0.1",
    token: Annotated[str | None, typer.Option(envvar="MILLSTREAM_TOKEN", help="What others must know to look.")] = None,
    until_stdin_ends: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    """A page that shows a run: records flowing, low watermarks moving; and its metrics at /metrics."""
    need_dashboard()
    from millstream.dashboard.server import serve

    def ready(address: str) -> None:
        err.print(f"dashboard at {address}", soft_wrap=True, highlight=False, markup=False)

    serve(at, host=host, port=port, token=token, ready=ready, until_stdin_ends=until_stdin_ends)


@app.command()
def slots(
    dsn_env: Annotated[str, typer.Option(metavar="NAME", help="The environment variable that has the dsn of a PostgreSQL server.")],
    drop: Annotated[str | None, typer.Option(metavar="SLOT", help="Drop this one, with its publication: nobody reads it any more.")] = None,
) -> None:
    """What ms.postgres_changes has left on a PostgreSQL server, and how much WAL that holds back there."""
    from millstream.clients.postgres_dsn import Dsn, needs_psycopg

    needs_psycopg("millstream slots")
    from millstream.clients.postgres_slots import drop_slot, list_slots
    from millstream.command.tables import show_slots

    dsn = Dsn(secret(env=dsn_env))
    if drop is not None:
        drop_slot(dsn, drop)
    show_slots(list_slots(dsn), out)


@app.command()
def demo(
    at: Annotated[Path, typer.Option(metavar="DIR", help="Where the demo keeps its traffic, its run and its picture.")] = Path("demo"),
    seed: Annotated[int | None, typer.Option(help="Another seed, other traffic.")] = None,
    dashboard: Annotated[
        bool | None, typer.Option(help="Serve a page that shows it, until Enter is pressed. Without a word, on a terminal only.")
    ] = None,
) -> None:
    """Zeitgeist: weeks of simulated queries, and the spikes and dips found in them."""
    if importlib.util.find_spec("matplotlib") is None:
        raise MillstreamError("the demo draws a picture with matplotlib, which is not installed: pip install 'millstream[demo]'")
    from millstream.zeitgeist.demo import WANTED, play

    folder = Path(arguments.path("demo", at))
    shown = (out.is_terminal and has_dashboard()) if dashboard is None else dashboard
    with beside(folder / "run") if shown else nullcontext():
        reached = play(folder, seed=seed, slowly=shown)
        if shown:
            err.print("The page stays until you press Enter.", highlight=False)
            sys.stdin.readline()
    if reached < WANTED:
        raise MillstreamError(f"the demo wants a precision and a recall of {WANTED} at least; its table shows what was missed")


def load(file: str) -> Topology:
    """The topology of a Python file."""
    path, _, wanted = file.partition(":")
    module = _module(Path(path))
    found = {name: value for name, value in vars(module).items() if isinstance(value, Topology)}
    if wanted:
        if wanted not in found:
            raise TopologyError(f"{path} has no topology called {wanted!r}; it has {', '.join(found) or 'none'}")
        return found[wanted]
    if len({id(topology) for topology in found.values()}) != 1:
        names = ", ".join(found) or "none; make one with topology = ms.Topology(...)"
        raise TopologyError(f"which topology of {path}? It has {names}" + (f"; say {path}:{next(iter(found))}" if found else ""))
    return next(iter(found.values()))


def _module(path: Path) -> ModuleType:
    if not path.is_file():
        raise TopologyError(f"there is no file {path}")
    name = path.stem
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise TopologyError(f"{path} is not a Python file")
    sys.path.insert(0, str(path.parent.absolute()))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def main() -> None:
    """Errors read as if a colleague wrote them; what Spark said is kept for those who want it."""
    try:
        app()
    except MillstreamError as error:
        err.print("[bold red]millstream:[/] ", end="")
        err.print(str(error), markup=False, highlight=False, soft_wrap=True)
        if isinstance(error, RunFailed) and error.spark_log is not None:
            err.print(f"\nSpark's log is in {error.spark_log}", markup=False, highlight=False, soft_wrap=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
