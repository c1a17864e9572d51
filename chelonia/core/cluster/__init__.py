"""The cluster: Shepherds and the placement of copies, the states of replicas, healing and drills."""
