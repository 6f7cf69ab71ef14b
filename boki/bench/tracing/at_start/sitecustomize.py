"""Runs when Python starts in a process that is traced: this folder is on its PYTHONPATH."""

import os

from boki.bench.tracing.marks import FOLDER_VARIABLE

if folder := os.environ.get(FOLDER_VARIABLE):
    from boki.bench.tracing.probes import install

    install(folder)
