"""What a function or a client holds: the decorator, the context, the LogBook, and the ports below them."""
