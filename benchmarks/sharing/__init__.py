"""Many jobs at once on one machine: n training jobs over the same photos, sharing or not."""
