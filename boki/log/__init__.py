"""The vocabulary and the laws of the log: pure values and functions, no I/O, no clock. Imports only `boki.errors`."""
