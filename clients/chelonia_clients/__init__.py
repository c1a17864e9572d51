"""The public SDK and the `chelonia` command line."""
