"""What a new user gets wrong with Spark, and the whole message that comes back."""

from __future__ import annotations

from io import BytesIO
from typing import IO, Any, NoReturn

import pytest
from pyspark import SparkContext, java_gateway
from pyspark.errors import PySparkRuntimeError

from boki.errors import ConfigError
from boki.spark import local_session

NO_MASTER = b"""WARNING: Using incubator modules: jdk.incubator.vector
Exception in thread "main" org.apache.spark.SparkException: \
Master must either be yarn or start with spark, k8s, or local
\tat org.apache.spark.deploy.SparkSubmit.error(SparkSubmit.scala:1047)
"""
ROWS = [
    (
        "B50",
        NO_MASTER,
        (
            'Spark\'s JVM did not start: Exception in thread "main" org.apache.spark.SparkException: Master must '
            "either be yarn or start with spark, k8s, or local; is --master right?"
        ),
    ),
    ("B50 silent", b"", "Spark's JVM did not start: no word; is --master right?"),
]


@pytest.mark.parametrize(("said", "told"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_a_jvm_that_does_not_start_is_told_in_one_line(said: bytes, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line of its output that says why, in place of a Java stack and a code of PySpark's."""

    def launch(_conf: Any, outputs: dict[str, IO[bytes]]) -> NoReturn:
        outputs["stderr"].write(said)
        raise PySparkRuntimeError("Java gateway process exited before sending its port number")

    monkeypatch.setattr(java_gateway, "launch_gateway", launch)
    monkeypatch.setattr(SparkContext, "_gateway", None)
    with pytest.raises(ConfigError) as caught:
        local_session._launch({"spark.master": "nonsense"}, BytesIO())
    assert caught.value.message == told
