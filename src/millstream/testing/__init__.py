"""A topology in this process: you send, you move the clocks, you read. No Spark, and milliseconds a test."""

from millstream.testing.contracts import TargetContract, TransactionalTargetContract
from millstream.testing.driver import Driver
from millstream.testing.source_contract import SourceContract

__all__ = ["Driver", "SourceContract", "TargetContract", "TransactionalTargetContract"]
