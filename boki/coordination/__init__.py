"""The view, members, plans and fences as ZooKeeper holds them: the client, and the interface above it."""
