"""The content of a file: attributes, extents of blobs, uploads in parts, and the ordered pages that list it."""
