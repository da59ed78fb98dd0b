"""How well the simulator foretells what was measured."""
