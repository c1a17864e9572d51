"""The Librarian's hand on the A-Hash: stored layout, blobs, reads and transacts."""
