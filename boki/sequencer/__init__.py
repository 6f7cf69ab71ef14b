"""The sequencer role: orders records without seeing them."""
