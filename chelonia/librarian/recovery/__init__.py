"""Recovery: invariants and fsck, snapshots, rebuild, and a Shepherd's removal."""
