"""Quotas: `decide` decides which counters a change adds to; `act` reads for it, and sets quotas."""
