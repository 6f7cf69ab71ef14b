"""Messages between nodes: what travels, who may send it, on which lane, and the sockets."""
