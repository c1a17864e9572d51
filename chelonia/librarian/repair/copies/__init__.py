"""Repair copies: `under_way` chooses which may begin, `act` makes one."""
