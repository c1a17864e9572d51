"""The namespace: names walked, made, moved and removed; uploads that become names."""
