"""Stands in for torchvision where mosaicml-streaming is imported; none of it is used.

mosaicml-streaming imports its vision datasets with everything else, and these import torchvision, which works only
beside exactly the build of torch that it was made for. The benchmark reads through ``StreamingDataset``, which needs
nothing of it.
"""
