"""The semantics of Millstream: events in, effects out. No Spark, no clock, no input or output."""
