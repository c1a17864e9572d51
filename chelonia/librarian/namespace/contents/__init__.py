"""Contents of files of several blobs: decided in `decide`, carried out in `act`."""
