"""Several nodes on one machine: a cluster against loaders that each node runs for itself."""
