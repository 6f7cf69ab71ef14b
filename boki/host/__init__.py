"""The shell: what drives a core for real — clock, disk, links, loop."""
