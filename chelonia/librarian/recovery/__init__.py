"""Recovery: invariants and fsck, snapshots, rebuild, and the removal of a Shepherd."""
