"""The namespace: walking, making, moving and removing names; uploads that become files."""
