"""A group of A-Hash peers: who is master, what is durable, who belongs to it."""
