"""The processes that run functions: the zygote, workers, their frames and their confinement."""
