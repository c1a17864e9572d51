"""Balance between Shepherds: decided in `decide`, carried out in `act`."""
