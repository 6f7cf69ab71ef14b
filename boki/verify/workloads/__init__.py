"""Applications that the simulator and chaos run, and what must have come of them."""
