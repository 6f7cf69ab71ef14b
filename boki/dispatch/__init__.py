"""Dispatch: which worker runs which call, and when. Pure but for `server/`."""
