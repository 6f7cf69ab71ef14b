"""Logged calls: put into the log before they run, so that they survive whoever runs them."""
