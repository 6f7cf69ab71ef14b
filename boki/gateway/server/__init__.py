"""The gateway's shell: the listener, HTTP, and calls that other engines run."""
