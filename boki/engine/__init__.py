"""The engine role: runs functions and serves their log calls."""
