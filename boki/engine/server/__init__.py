"""The engine's shell: the requests of functions and of other engines, and the answers."""
