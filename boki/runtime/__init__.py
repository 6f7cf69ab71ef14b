"""The function's side: the decorator, the context, the LogBook, and the worker processes that run functions."""
