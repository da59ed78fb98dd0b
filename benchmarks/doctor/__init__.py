"""Sick set-ups, what ``headrace doctor`` says of them, and what comes of doing what it says."""
