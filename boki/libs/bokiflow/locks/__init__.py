"""Locks of workflows: a queue in the log for each key, and a fencing token for each grant."""
