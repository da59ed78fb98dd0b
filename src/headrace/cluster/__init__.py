"""Many machines as one pool: servers on nodes that hold samples for all jobs of a cluster, and those who ask them."""
