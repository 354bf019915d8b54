"""Spark's Python daemon with its imports done before it forks: a worker then starts in milliseconds.

Importing pandas, pyarrow and the mill takes two to four seconds of a core. Used in the local session that Millstream makes;
any other session works without it, only slower.
"""

import gc
import importlib
import sys

NEEDED = {
    "pyspark.worker": ["pandas", "millstream.spark.lanes"],
    "pyspark.sql.worker.write_into_data_source": ["millstream.spark.injectors"],
    "pyspark.sql.worker.python_streaming_sink_runner": ["millstream.spark.injectors"],
    "pyspark.sql.worker.create_data_source": ["millstream.spark.datasource"],
}

if __name__ == "__main__":
    for name in NEEDED.get(sys.argv[1] if len(sys.argv) > 1 else "", []):
        importlib.import_module(name)
    gc.freeze()  # what is imported stays shared with the workers
    from pyspark import daemon

    daemon.manager()
