"""Which Shepherds there are, what each reports, and which of them may be believed."""
