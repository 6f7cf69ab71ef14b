"""`boki demo`: real flights in and out of a log, and a system that is killed and comes back."""
