"""What HTTP and WebDAV carry beside bodies: header fields, conditions, ranges, checksums, property documents. Pure."""
