"""The rebuild of a namespace from bytes: decided in `decide`, carried out in `act`."""
