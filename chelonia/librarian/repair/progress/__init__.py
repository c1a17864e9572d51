"""Progress of healing: rounds in `decide`, kept and shown in `act`."""
