"""The models of throughput against real runs on slow storage."""
