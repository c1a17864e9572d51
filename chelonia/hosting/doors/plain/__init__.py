"""The plain door: the namespace as HTTPS URLs, for browsers, scripts, WebDAV clients and grid jobs."""
