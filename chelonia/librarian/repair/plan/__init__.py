"""The repair plan of a blob: decided in `decide`, read for in `read`, carried out in `act`."""
