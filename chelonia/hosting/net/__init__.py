"""TLS, HTTP, identity and RPC: what clients may import."""
