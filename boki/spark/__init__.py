"""LogBooks as a source and a sink of Apache Spark: `format("logbook")`, and a session in which it works.

Importing this package brings no Spark in; what needs it imports it. See docs/spark.md.
"""

from boki.spark.local_session import session

__all__ = ["session"]
