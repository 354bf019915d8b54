"""Services that targets are tested against."""

from tests.services.kafka import kafka as kafka
