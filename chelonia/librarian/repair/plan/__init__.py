"""The repair plan of a blob: `decide` decides, `read` reads for it, `act` carries out."""
