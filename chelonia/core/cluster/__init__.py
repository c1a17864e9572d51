"""What the cluster is: Shepherds and where copies go, the states of replicas, healing and drills."""
