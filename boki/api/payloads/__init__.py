"""Payloads: how arguments and results become JSON, and what is said when they cannot."""
