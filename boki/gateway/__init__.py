"""The gateway role: HTTP in, calls and log operations out."""
