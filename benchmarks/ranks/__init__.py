"""Several ranks in lockstep on one machine: storage that is slow here and there, or becomes slow in mid-run."""
