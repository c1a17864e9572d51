"""Where the A-Hash keeps its records: the port, its layout, and the engines behind it."""
