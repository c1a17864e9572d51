"""The test suite: unit, contract, sim, cluster, conform."""
