"""Workers as processes: started, fed with calls, read, and ended."""
