"""One training job against its peers: the same photos, the same work, the same number of workers."""
