"""Parts of uploads that no snapshot knows, put together again: `decide` decides, `act` carries out."""
