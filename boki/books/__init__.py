"""What the runtime keeps in the log for itself: logged calls, deployed functions, retention."""
