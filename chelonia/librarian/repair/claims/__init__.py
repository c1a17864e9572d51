"""Claims of copies under way: `decide` says how long they last, `act` renews them."""
