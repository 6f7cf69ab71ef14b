"""What `boki doctor` looks at on a machine, and what it thinks of what it found."""
