"""Proofs of copies before another is given up: `decide` judges, `act` asks for them."""
