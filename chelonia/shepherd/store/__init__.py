"""What a Shepherd keeps: replicas on disk, their index, and the life of each."""
