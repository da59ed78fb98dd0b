"""The import changed and nothing else."""
