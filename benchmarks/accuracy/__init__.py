"""What a network learns through either loader."""
