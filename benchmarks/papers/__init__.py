"""The experiments of the papers, run on simulated hardware or at small scale, the paper's figure beside ours."""
