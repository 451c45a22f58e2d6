"""The journal of events and everything that is shown from it."""
