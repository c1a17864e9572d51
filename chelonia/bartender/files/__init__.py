"""The port `core.ports.files`, on a Librarian and Shepherds: attributes read, uploads placed, changes applied."""
