"""The Librarian: keeps the namespace, knows which Shepherds are alive, plans repair."""
