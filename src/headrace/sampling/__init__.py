"""Who draws which sample when. One policy, one file; all pure."""

from headrace.sampling.uniform import Draw, Geometry, UniformEpoch, epoch_order

__all__ = ["Draw", "Geometry", "UniformEpoch", "epoch_order"]
