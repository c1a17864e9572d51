"""The A-Hash: keeps all metadata and applies conditional changes atomically."""
