"""A real ZooKeeper on this machine, from the jars that PySpark ships: for `boki up` without one, and for tests."""
