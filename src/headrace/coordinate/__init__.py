"""The brain: which batch goes where, what is cached, what happens when a worker dies. Pure: no I/O."""
