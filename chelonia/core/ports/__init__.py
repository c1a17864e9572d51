"""The ports: what the services, the files and their bytes are asked for."""
