"""The repair leader: its lease, and the duties that only the leader has."""
