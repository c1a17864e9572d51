"""Uploads in parts: contents that grow unseen until they are sealed."""
