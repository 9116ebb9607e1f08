"""Live widgets."""
