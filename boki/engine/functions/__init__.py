"""Functions: loaded, described, and run in worker processes."""
