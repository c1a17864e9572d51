"""The Shepherds: their presence, their reports, and whether to believe them."""
