"""The four services, each bound to the node that hosts it. A process imports only those that it hosts."""
