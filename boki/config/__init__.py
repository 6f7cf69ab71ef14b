"""Configuration: of `boki.toml`, of one process of a cluster, and of `boki up`."""
