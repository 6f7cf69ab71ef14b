"""Serverless Python functions over a replicated, totally ordered shared log."""
