"""The rebuild of a namespace from bytes: `decide` decides, `act` carries out."""
