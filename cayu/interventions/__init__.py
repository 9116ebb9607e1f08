"""Memory interventions as values: what is changed, what came of it, and the journal that an execution is kept in."""
