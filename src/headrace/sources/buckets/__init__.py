"""Objects of buckets: ``s3://``, ``gs://``, ``az://`` and ``https://``, through obstore."""
