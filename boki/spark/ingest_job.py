"""A pipeline as a job of its own: `spark-submit ingest_job.py pipeline.toml [--once]`, wherever Spark runs it."""

from __future__ import annotations

import sys
from pathlib import Path

from boki.errors import BokiError
from boki.spark.ingest import claimed, run
from boki.spark.local_session import session
from boki.spark.pipeline import load_pipeline
from boki.spark.progress import Progress


def main(words: list[str]) -> None:
    """Run the pipeline of the named file until it is done, or stopped."""
    names = [word for word in words if word != "--once"]
    if len(names) != 1 or names[0].startswith("-"):
        raise SystemExit("usage: spark-submit ingest_job.py PIPELINE.toml [--once]")
    try:
        pipeline = load_pipeline(Path(names[0]), {})
        with claimed(pipeline) as door:
            run(lambda: session(pipeline.name, master=None), pipeline, door, once="--once" in words, report=_tell)
    except BokiError as error:
        raise SystemExit(f"error: {error.message}") from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def _tell(count: int, progress: Progress) -> None:
    number = progress.done.batch.number if progress.done is not None else -1
    print(f"batch {number}: {count:,} records", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
