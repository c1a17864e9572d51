"""The verbs of the `chelonia` command, a module for each family."""
