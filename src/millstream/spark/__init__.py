"""Millstream on Spark: queries that bring records in, mill them and take them out."""
