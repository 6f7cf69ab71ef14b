"""Benchmarks as programs: each starts a system of its own and prints what it measured.

Load on the log runs inside functions in worker processes (`load_functions/`), because that is where users of the log
are; load on the gateway comes over HTTP. Nothing here asserts a figure: the table of targets is `docs/benchmarks.md`.
"""
