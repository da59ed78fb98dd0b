"""What the shared host deals out, and what sharing costs where there is nothing to gain by it."""
