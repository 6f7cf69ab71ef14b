"""Flow control of workflows: limits of concurrency and of rate, and which workflow goes first."""
