"""Balance between Shepherds: `decide` decides, `act` carries out."""
