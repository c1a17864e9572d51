"""TLS, HTTP, identity and RPC, which clients may import."""
