"""Messages of a Shepherd to Librarians: heartbeats, reports, inventories, records."""
