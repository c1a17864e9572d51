"""HTTP and WebDAV apart from bodies: header fields, conditions, ranges, checksums, property documents. Pure."""
