"""Applications to start from; each is a module that can be run."""
