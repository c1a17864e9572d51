"""The port `core.files`, on a Librarian and Shepherds: attributes read, uploads placed, changes applied."""
