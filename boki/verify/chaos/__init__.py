"""Real faults for real processes: kills, stops, cut links and bad disks, with histories that are checked afterwards."""
