"""Wrong functions, payloads and results, and every word of what their users are told."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from boki.calls import Consumption, FunctionInfo
from boki.errors import BokiError
from boki.runtime.function import check_described
from boki.runtime.loading import Sources

HEAD = "import boki\nfrom boki import Context, function\nfrom boki.libs.bokiqueue import consume\n"
OPTIONS = "name, timeout_s, book, concurrency, min_workers, max_workers, memory_bytes"
MODULES = [
    (
        "B19-function",
        "@function(timeout=5)\nasync def f(ctx): ...\n",
        "w.py:4: ConfigError: @function has no option timeout; did you mean timeout_s? Its options: " + OPTIONS,
    ),
    (
        "B19-strange",
        "@function(colour='red')\nasync def f(ctx): ...\n",
        "w.py:4: ConfigError: @function has no option colour. Its options: " + OPTIONS,
    ),
    (
        "B19-consume",
        "@consume('q', max_deliveries=3)\nasync def f(ctx, one): ...\n",
        (
            "w.py:4: ConfigError: @consume has no option max_deliveries, because it is the queue's: set it with "
            "Queue.configure(max_deliveries=...)"
        ),
    ),
    (
        "B19-consume-typo",
        "@consume('q', retry=3)\nasync def f(ctx, one): ...\n",
        (
            "w.py:4: ConfigError: @consume has no option retry; did you mean retry_s? Its options: queue, group, "
            "batch, concurrency, retry_s, name, timeout_s, book, min_workers, max_workers, memory_bytes"
        ),
    ),
    (
        "H5-min_workers",
        "@function(min_workers=100000, max_workers=10**9)\nasync def f(ctx): ...\n",
        "w.py:4: ConfigError: min_workers must be an int from 0 to 256, not 100000",
    ),
    (
        "H5-max_workers",
        "@function(max_workers=10**9)\nasync def f(ctx): ...\n",
        "w.py:4: ConfigError: max_workers must be an int from 1 to 256, not 1000000000",
    ),
    (
        "H5-concurrency",
        "@function(concurrency=10**9)\nasync def f(ctx): ...\n",
        "w.py:4: ConfigError: concurrency must be an int from 1 to 10,000, not 1000000000",
    ),
]


@pytest.mark.parametrize(("source", "told"), [row[1:] for row in MODULES], ids=[row[0] for row in MODULES])
def test_what_a_module_is_told(source: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When it is imported: the line of its own code, what is wrong there, and what to write instead."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    Path("w.py").write_text(HEAD + source)
    assert Sources(str(tmp_path), pinned={}).registry("w", str(tmp_path / "w.py")) == told


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"min_workers": 100_000}, "min_workers must be an int from 0 to 256, not 100000"),
        ({"max_workers": 10**9}, "max_workers must be an int from 1 to 256, not 1000000000"),
        (
            {"consumes": Consumption(queue="q", concurrency=10**6)},
            "concurrency must be an int from 1 to 1,000, not 1000000",
        ),
        ({"name": "../x"}, "function name must be 1 to 128 characters of A-Z a-z 0-9 . _ : -, not '../x'"),
    ],
    ids=["H5-min_workers", "H5-max_workers", "H5-consumers", "name"],
)
def test_a_worker_cannot_describe_what_no_decorator_registers(options: dict[str, object], told: str) -> None:
    """Code of a user's runs in the process that describes a module: the engine checks what it says."""
    with pytest.raises(BokiError) as caught:
        check_described(FunctionInfo(**{"name": "f", "module": "m", "is_async": True, **options}))  # type: ignore[arg-type]
    assert caught.value.message == told
