"""BokiQueue: message queues in a LogBook."""
