"""Flow control: how many workflows run at once, how often they begin, and which of them goes first."""
