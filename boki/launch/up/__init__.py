"""A whole cluster on one machine, every role a process of its own: what `boki up` starts, watches and stops."""
