"""One name."""


class VisionDataset:
    """Nothing."""
