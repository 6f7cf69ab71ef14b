"""Tests of BokiStore."""
