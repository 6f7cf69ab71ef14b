"""One suite for every implementation of the log."""
