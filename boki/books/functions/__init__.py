"""Deploying functions: a folder as a bundle in the log, which every engine fetches and runs."""
