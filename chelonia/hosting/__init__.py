"""Binds the services to the world: daemon, configuration, TLS, HTTP, clock and randomness."""
