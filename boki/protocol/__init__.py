"""What processes say to each other: messages, effects, calls, routes, and how a follower reads."""
