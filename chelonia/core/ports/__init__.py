"""The ports: the contracts of the services, of files and of their bytes."""
