"""The namespace as a file system: `chelonia mount`. `filesystem` has the operations, `kernel` the binding."""
