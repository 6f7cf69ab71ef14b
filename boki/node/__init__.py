"""The processes of a cluster: each role's core put together with its disk, links and coordinator."""
