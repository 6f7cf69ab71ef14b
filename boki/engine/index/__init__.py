"""The index: which records each tag of each book has, in memory and on the engine's disk."""
