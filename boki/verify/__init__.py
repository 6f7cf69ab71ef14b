"""How it is known to work: histories and their checkers, workloads, the simulator, and chaos."""
