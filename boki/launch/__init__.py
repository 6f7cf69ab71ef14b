"""What starts processes: `boki dev`, `boki up`, children that end with their parents, a ZooKeeper."""
