"""Several jobs that share one preparation, as processes of their own."""
