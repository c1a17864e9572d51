"""Quotas: what a change adds to which is decided in `decide`; `act` reads what that takes, and sets quotas."""
