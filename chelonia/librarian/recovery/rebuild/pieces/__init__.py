"""Pieces of files that a rebuild finds: `decide` decides which are laid over their files, `act` lays them."""
