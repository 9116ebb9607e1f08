"""The command line `cayu`: a thin face over the runtime's public methods, for people and for programs."""
