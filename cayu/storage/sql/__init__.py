"""The SQL engines; each keeps its queries and migrations in `.sql` files beside its code."""
