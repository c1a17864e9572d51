"""Pure decisions of a Shepherd: reports, scrub rounds, authority, places."""
