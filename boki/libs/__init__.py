"""Libraries over the LogBook: they see the public API alone, so whatever they do, anybody's library can do."""
