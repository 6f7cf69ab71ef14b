"""What is told of a run that has failed: the reason, out of the traces that Spark puts around it."""

from __future__ import annotations

import pytest

from boki.spark.causes import cause_of

FRAMES = "\tat org.apache.spark.scheduler.Task.run(Task.scala:147)\n" * 40
FAILED = "An error occurred while calling o207.parquet.\n: org.apache.spark.SparkException: Job aborted.\n" + FRAMES
PROXY = (
    "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Error while calling a Python callback:\n"
    "Traceback (most recent call last):\n" + '  File "x.py", line 1, in call\n    raise e\n' * 20
)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (FAILED, "SparkException: Job aborted."),
        (
            f"{FAILED}Caused by: a.B: x\n{FRAMES}Caused by: java.io.IOException: No space left on device\n{FRAMES}",
            "IOException: No space left on device",
        ),
        (
            f"{PROXY}OSError: [Errno 28] No space left on device: '/lake'\n SQLSTATE: XXKST",
            "OSError: [Errno 28] No spa",
        ),
        (
            f"{PROXY}py4j.protocol.Py4JJavaError: {FAILED}Caused by: java.lang.StackOverflowError\n",
            "StackOverflowError",
        ),
        (f"{PROXY}boki.errors.Unavailable: batch 3: why\n{FRAMES}Caused by: java.lang.Error: x", "batch 3: why"),
        ("[TABLE_NOT_FOUND] There is no such table.\nSQLSTATE: 1", "[TABLE_NOT_FOUND] There is no such table."),
        ("Error: " + "x" * 5000, "Error: xxxx"),
        ("", ""),
    ],
    ids=range(8),
)
def test_the_reason_stands_last_in_the_traces(text: str, cause: str) -> None:
    """However long they are; and it is short."""
    found = cause_of(RuntimeError(text))
    assert found.startswith(cause)
    assert len(found) <= 500


def test_what_spark_keeps_beside_its_message_is_looked_through() -> None:
    """Errors that PySpark has turned into its own say in short what failed, and have the trace with them."""
    error = RuntimeError("[TASK_WRITE_FAILED] Task failed while writing rows to file:/lake. SQLSTATE: 58030")
    error._stackTrace = f"{FAILED}Caused by: java.io.IOException: No space left on device\n{FRAMES}"  # type: ignore[attr-defined]
    assert cause_of(error) == "IOException: No space left on device"
