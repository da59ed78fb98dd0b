"""What every layer shares: forms, errors, sizes, randomness, trees of arrays. ``memory`` alone does I/O."""
