"""Who may write to a folder, and where its buckets go."""

from __future__ import annotations

from collections import Counter

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from millstream.spark.owner import spread

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(("buckets", "partitions"), [(16, 2), (16, 16), (7, 3), (64, 5)])
def test_bucket_labels_spread_evenly_over_sparks_partitions(spark: SparkSession, buckets: int, partitions: int) -> None:
    labels = spread(buckets, partitions)
    assert len(set(labels)) == buckets
    frame = spark.createDataFrame([(label,) for label in labels], "bucket int")
    found = frame.select(F.pmod(F.hash("bucket"), F.lit(partitions)).alias("partition")).collect()
    counts = Counter(row["partition"] for row in found)
    assert len(counts) == partitions
    assert max(counts.values()) - min(counts.values()) <= 1 or max(counts.values()) == -(-buckets // partitions)
