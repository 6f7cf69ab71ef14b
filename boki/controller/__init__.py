"""The controller role: decides who is in the next view."""
