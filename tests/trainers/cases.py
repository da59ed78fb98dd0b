"""All that is tried with trainers, and what it has to give. Needs none of them."""

from __future__ import annotations

from dataclasses import dataclass

from tests.trainers.audit import Rule
from tests.trainers.data import KINDS

RECIPES = ("recipe", "cache", "share")
PACKAGES = {
    "lightning": "lightning",
    "fabric": "lightning",
    "accelerate": "accelerate",
    "transformers": "transformers",
    "torchrun": "torch",
    "ray": "ray",
}
TITLES = {
    "lightning": "Lightning",
    "fabric": "Fabric",
    "accelerate": "Accelerate",
    "transformers": "Hugging Face Trainer",
    "torchrun": "torchrun",
    "ray": "Ray",
}


_USUAL = Rule()


@dataclass(frozen=True)
class Case:
    """One thing that people do with a loader."""

    trainer: str
    name: str
    text: str
    rule: Rule = _USUAL
    worlds: tuple[int, ...] = (1, 2)


CASES = (
    Case("lightning", "argument", "`trainer.fit(model, loader)`"),
    Case("lightning", "hook", "the hook `train_dataloader()`"),
    Case("lightning", "own_ranks", "`Trainer(use_distributed_sampler=False)`", Rule(exact=RECIPES)),
    Case("lightning", "validation", "a second loader for validation", Rule((0, 1, 100, 101), loaders=2)),
    Case("lightning", "resume_mid_epoch", "`ckpt_path=`, in the middle of an epoch",
         Rule(loaders=2, as_if="argument")),
    Case("lightning", "resume_end_of_epoch", "`ckpt_path=`, at the end of an epoch",
         Rule(loaders=2, as_if="argument")),
    Case("lightning", "predict", "`trainer.predict(model, loader)`", Rule((0,), exact=KINDS)),
    Case("fabric", "setup", "`fabric.setup_dataloaders(loader)`"),
    Case("fabric", "own_ranks", "the same with `use_distributed_sampler=False`", Rule(exact=RECIPES)),
    Case("accelerate", "prepare", "`accelerator.prepare(loader)`"),
    Case("accelerate", "seeded", "with `use_seedable_sampler=True`"),
    Case("accelerate", "in_order", "without `shuffle`"),
    Case("accelerate", "uneven", "with `even_batches=False`", Rule(exact=KINDS)),
    Case("accelerate", "split_batches", "with `split_batches=True`"),
    Case("accelerate", "dispatch", "with `dispatch_batches=True`"),
    Case("accelerate", "skip", "`skip_first_batches`, in the middle of an epoch",
         Rule(loaders=2, as_if="prepare_seed", skips=True)),
    Case("accelerate", "unprepared", "the loader left out of `prepare`", Rule(exact=RECIPES)),
    Case("transformers", "dataset", "`Trainer(train_dataset=loader.dataset)`"),
    Case("transformers", "prepared", "`get_train_dataloader()` returns `self.accelerator.prepare(loader)`"),
    Case("transformers", "own_ranks", "`get_train_dataloader()` returns the loader", Rule(exact=RECIPES)),
    Case("transformers", "resume", "`resume_from_checkpoint`, in the middle of an epoch, prepared",
         Rule(loaders=3, as_if="prepared", skips=True)),
    Case("torchrun", "own_ranks", "the loader by itself (over a dataset with `rank=`, `world_size=`)",
         Rule(exact=KINDS), (2,)),
    Case("torchrun", "sampler", "`sampler=DistributedSampler(...)`, told the epoch", worlds=(2,)),
    Case("torchrun", "resume", "`state_dict()`, in the middle of an epoch",
         Rule((0, 1), loaders=2, exact=RECIPES), (2,)),
    Case("ray", "prepare", "`ray.train.torch.prepare_data_loader(loader)`", worlds=(2,)),
    Case("ray", "own_ranks", "in Ray Train, the loader by itself", Rule(exact=RECIPES), (2,)),
    Case("ray", "tune_0", "in a trial of Ray Tune", Rule(exact=KINDS), (1,)),
    Case("ray", "tune_1", "in another trial beside it", Rule(exact=KINDS), (1,)),
)  # fmt: skip
