"""What Librarians hear of a Shepherd."""
