"""A pipeline as a job of its own: `spark-submit ingest_job.py pipeline.toml [--once]`, wherever Spark runs it."""

from __future__ import annotations

import sys
from pathlib import Path

from boki.spark.ingest import start
from boki.spark.local_session import session
from boki.spark.pipeline import Progress, load_pipeline


def main(words: list[str]) -> None:
    """Run the pipeline of the named file until it is done, or stopped."""
    names = [word for word in words if word != "--once"]
    if len(names) != 1:
        raise SystemExit("usage: spark-submit ingest_job.py PIPELINE.toml [--once]")
    pipeline = load_pipeline(Path(names[0]), {})
    start(session(pipeline.name, master=None), pipeline, once="--once" in words, report=_tell).awaitTermination()


def _tell(count: int, progress: Progress) -> None:
    print(f"batch {progress.batch}: {count:,} records", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
