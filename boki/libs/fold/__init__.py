"""The ground for libraries on a LogBook: state machines that are folds of tagged records, and what they act with.

A library has three parts: records (a typed union, written by a `codec.RecordCodec`), a pure fold that decides
(`fold.Fold`), and one file that acts. This package has what all of them need, each in a module of its own; import from
the modules, so that pure ones bring no event loop with them.

==============  ======================================================================================
`codec`         records as bytes: a version byte and a MessagePack array
`fold`          the protocol of a fold
`commands`      numbered commands of a session, each counted once
`clock`         the log's time, as one process knows it
`steps`         acting as generators of operations: one body for async, blocking, Spark and tests
`retrying`      repeating by `error.outcome`, with backoff and jitter
`checkpoints`   a fold's state in the log: written by one of many, found again, trimmed by
`follower`      one reading of a stream for all callers of a process who wait for it
`registry`      followers of one connection to the log: shared, evicted when idle, brought to rest
`outbox`        records and conditions of several libraries that commit as one group
`arguments`     argument checks that say what to write instead
==============  ======================================================================================
"""
