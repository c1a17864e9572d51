"""Claims of copies under way: how long they last in `decide`, renewed in `act`."""
