"""Timestamps from inside a running system, for `boki bench append --trace`.

No code of the system knows of it. Processes that are started with `traced` around them wrap the methods named in
`probes` when Python starts, and each writes its marks into a file of its own; all others run what they always run.
"""
