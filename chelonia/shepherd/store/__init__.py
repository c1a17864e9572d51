"""The store of a Shepherd: replicas on disk, their index, and the life of each."""
