"""The SparkSession of a run: a good local one, or the user's own with what the mill needs set beside it."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path

import py4j
import pyspark
from pyspark import SparkConf, SparkContext
from pyspark.errors import AnalysisException, PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource

from millstream.errors import LogError, MillstreamError

# What the queries of a run need. A query keeps the settings that its session has when it starts, so a user's own
# session is changed for that moment only.
QUERY_SETTINGS = {
    "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.pollingDelay": "50ms",
    "spark.sql.streaming.minBatchesToRetain": "10",
    "spark.sql.streaming.numRecentProgressUpdates": "5",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
}

# Spark's own way of writing checkpoints forks a process for every file on a local disk. This one renames, which is
# safe there because the lock of the folder keeps a second writer out.
LOCAL_CHECKPOINTS = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    )
}

_changing = threading.RLock()  # settings of a session: a second run that starts there would take ours for its own

SPARE_SLOTS = 2  # a lane has a slot for as long as it runs, and the inputs need one now and then

PYTHON = Path(__file__).with_name("python.sh")

JAVA_NEEDED = (
    "Spark needs Java 17, and none was found. Install it (Debian, Ubuntu: apt install openjdk-17-jre-headless; "
    "macOS: brew install openjdk@17; conda: conda install openjdk=17), or set JAVA_HOME to where it is."
)


def session_for(
    given: SparkSession | None, *, spark_log: Path | None, sources: tuple[type[DataSource], ...]
) -> tuple[SparkSession, Path | None]:
    """The session given, or the one that is there, or that of spark-submit, or a local one.

    Returns it with the file that its own log goes to: `spark_log` if it was made here, else None.
    """
    spark = given or SparkSession.getActiveSession()
    if spark is None and "PYSPARK_GATEWAY_PORT" in os.environ:  # under spark-submit, whose settings stand
        spark = SparkSession.builder.getOrCreate()
    if spark is None:
        spark = _local(spark_log)
    else:
        spark_log = None
    if "connect" in type(spark).__module__:
        raise MillstreamError("Millstream does not run through Spark Connect: it needs a SparkSession of the driver's own process")
    if spark.sparkContext.getConf().get("spark.speculation", "false") == "true":
        raise MillstreamError(
            "spark.speculation is on in this session: Spark would begin a second attempt of every lane, which is a long task by "
            "intention; switch it off"
        )
    for source in sources:
        try:
            spark.dataSource.register(source)
        except AnalysisException as error:
            if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
                raise
    return spark, spark_log


@contextmanager
def query_settings(spark: SparkSession, *, partitions: int) -> Iterator[None]:
    """Queries started inside have the settings that they need; the session has its own again afterwards."""
    wanted = {**QUERY_SETTINGS, **(LOCAL_CHECKPOINTS if _on_local_disk(spark) else {}), "spark.sql.shuffle.partitions": str(partitions)}
    with _changing:
        before = {name: spark.conf.get(name, None) for name in wanted}
        for name, value in wanted.items():
            spark.conf.set(name, value)
        try:
            yield
        finally:
            for name, old in before.items():
                if old is None:
                    spark.conf.unset(name)
                else:
                    spark.conf.set(name, old)


def cores(given: SparkSession | None) -> int:
    """How many tasks run at once."""
    active = given or SparkSession.getActiveSession()
    return active.sparkContext.defaultParallelism if active is not None else os.cpu_count() or 1


def require_java() -> None:
    """Before Spark says it in its own way."""
    home = os.environ.get("JAVA_HOME")
    java = Path(home, "bin", "java") if home else None
    if java is not None and not java.exists():
        raise MillstreamError(f"JAVA_HOME is {home}, but there is no bin/java in it. {JAVA_NEEDED}")
    if java is None and shutil.which("java") is None:
        raise MillstreamError(JAVA_NEEDED)


def _local(spark_log: Path | None) -> SparkSession:
    require_java()
    builder = (
        SparkSession.builder.appName("millstream")
        .master(f"local[{(os.cpu_count() or 1) + SPARE_SLOTS}]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.killEnabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.shuffle.partitions", str(os.cpu_count() or 1))
        .config("spark.python.worker.reuse", "true")
        .config("spark.python.daemon.module", "millstream.spark.daemon")
        .config("spark.sql.warehouse.dir", tempfile.gettempdir() + "/millstream-warehouse")
    )
    if spark_log is None:
        with _environment(), _interrupts_as_they_are(), _explain_java_exit(None):
            return _ends_quietly(_made(builder))
    quiet = resources.files("millstream.spark") / "log4j2-quiet.properties"
    builder = builder.config(
        "spark.driver.extraJavaOptions", f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dlog4j2.configurationFile=file:{quiet}"
    )
    with _environment(), _interrupts_as_they_are(), _explain_java_exit(spark_log), _standard_error_to(spark_log):
        return _ends_quietly(_made(builder.config("spark.ui.showConsoleProgress", "false")))


def _made(builder: SparkSession.Builder) -> SparkSession:
    """With a Java process in a session of its own: what a service or `timeout` sends to all processes of a group is the driver's to
    answer, and Java must live until the run has stopped in order. It ends with the driver all the same: it reads from it."""
    if SparkContext._gateway is None:
        conf = SparkConf().setAll(list(builder._options.items()))
        SparkContext._ensure_initialized(gateway=launch_gateway(conf, {"start_new_session": True}), conf=conf)  # type: ignore[no-untyped-call]
    return builder.getOrCreate()


def _ends_quietly(spark: SparkSession) -> SparkSession:
    """PySpark and Py4J print tracebacks when Java goes before they do; that Java is gone we report, if it matters.

    Who has configured logging for Py4J keeps what it logs.
    """
    logging.getLogger("py4j").addHandler(logging.NullHandler())
    server = getattr(spark.sparkContext, "_accumulatorServer", None)
    if server is not None:
        server.handle_error = lambda *_: None
    return spark


@contextmanager
def _explain_java_exit(spark_log: Path | None) -> Iterator[None]:
    """A Java process that ends before it has begun, most often for its age, is reported with what it printed."""
    before = spark_log.stat().st_size if spark_log is not None and spark_log.exists() else 0
    try:
        yield
    except PySparkRuntimeError as error:
        if error.getCondition() != "JAVA_GATEWAY_EXITED":
            raise
        said = spark_log.read_bytes()[before:].decode(errors="replace").split("\n")[0] if spark_log is not None else "it has said why above"
        raise MillstreamError(
            f"Spark's Java process did not start: {said}. Spark needs Java 17 or newer, and java -version tells which one is found; "
            f"another one is used if JAVA_HOME says where it is" + ("" if spark_log is None else f". All that it said is in {spark_log}")
        ) from None


@contextmanager
def _environment() -> Iterator[None]:
    """Java, when it is started inside, hands these on to the Python processes that it starts; ours are as before afterwards.

    Without them, Spark's workers are the first python3 on the path, and do not see what this process can import.
    """
    paths = [entry or os.getcwd() for entry in sys.path if not entry.endswith(".zip")]
    usual = {"PYSPARK_PYTHON": str(PYTHON) if _zip_is_idle() else sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    wanted = {name: os.environ.get(name, value) for name, value in usual.items()}
    wanted |= {"MILLSTREAM_PYTHON": sys.executable, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                del os.environ[name]
            else:
                os.environ[name] = old


def _zip_is_idle() -> bool:
    """Whether Spark's zip of PySpark only repeats the PySpark that is installed, so that `python.sh` may leave it out."""
    homes = {Path(os.environ.get("SPARK_HOME", pyspark.__path__[0])).resolve(), Path(pyspark.__path__[0]).resolve()}
    return len(homes) == 1 and Path(py4j.__path__[0]).exists() and os.access(PYTHON, os.X_OK)


@contextmanager
def _interrupts_as_they_are() -> Iterator[None]:
    """Spark takes Ctrl-C for itself and cancels its jobs; whoever has called us may have other plans."""
    kept = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, kept)


@contextmanager
def _standard_error_to(spark_log: Path) -> Iterator[None]:
    """What is started inside inherits a file as its standard error."""
    sys.stderr.flush()
    kept = os.dup(2)
    with spark_log.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _on_local_disk(spark: SparkSession) -> bool:
    return (spark.sparkContext.master or "").startswith("local")


def lanes_for(spark: SparkSession) -> int:
    """As many as there are slots, but for two that inputs need now and then."""
    slots = cores(spark)
    if slots < 2:
        raise LogError(f"the session has {slots} slot, and a lane and the inputs take 3 at least; give it local[3], or more cores")
    return max(1, slots - 2)


def channel_host(spark: SparkSession) -> str | None:
    """Where lanes find the planner: a Unix socket on this machine, or the driver's own address on a cluster."""
    local = (spark.sparkContext.master or "").startswith("local") and "local-cluster" not in (spark.sparkContext.master or "")
    return None if local else spark.sparkContext.getConf().get("spark.driver.host")
