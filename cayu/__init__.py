"""Durable, inspectable long-running agents."""
