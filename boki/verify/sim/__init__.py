"""Whole clusters of the production cores in one thread, under a virtual clock, through the faults that a seed draws."""
