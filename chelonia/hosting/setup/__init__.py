"""Setting up: init, admit, join, the cluster's CA, development clusters, offline commands."""
