"""Checkpoints of the index: how an engine saves, shares and begins with them."""
