"""Agents, the coordinator among them, and the messages they exchange."""
