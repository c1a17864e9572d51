"""The S3 door: the namespace as buckets and keys, for programs that speak S3."""
