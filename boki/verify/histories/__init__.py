"""What clients asked and were told, and checkers that decide from it alone whether the log kept its promises."""
