"""What every layer shares: forms, errors, sizes, randomness, trees of arrays. Nothing here does I/O."""
