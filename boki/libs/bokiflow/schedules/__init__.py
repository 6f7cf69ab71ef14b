"""Schedules: workflows that start by themselves, at times that a cron line or an interval names.

A schedule is a logged call of its workflow that is suspended from tick to tick, so it has no process and nothing polls.
`spec` says when, `state` is the fold that decides, `attendant` acts, `handle` is what users hold.
"""
