"""The doors of a node: listeners, and from request bytes to a call on a port."""
