"""Stands in for transformers where mosaicml-streaming is imported: it asks whether a batch is one of its class."""
