"""The S3 protocol as bytes and values: signatures, chunked bodies, keys, requests and answers. Pure."""
