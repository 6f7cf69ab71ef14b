"""Where Spark looks for `format("logbook")`: it imports every module whose name begins so, and takes its source."""

from boki.spark.source import LogBookSource as DefaultSource

__all__ = ["DefaultSource"]
