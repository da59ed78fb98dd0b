"""What training on a GPU gets from loaders: images a second beside batches that are in its memory already."""
