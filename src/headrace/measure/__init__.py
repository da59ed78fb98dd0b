"""What a recipe costs on this machine: measured, and kept for the next start.

``take_profile`` measures a recipe. ``load_profile`` gives what is known of one, ``save_profile`` keeps it, and
``learn`` adds what a job found out while it ran.
"""

from headrace.measure.limits import Limit, find_limits
from headrace.measure.machine import Machine
from headrace.measure.profile import Profile
from headrace.measure.profile_files import forget_profile, learn, load_profile, save_profile
from headrace.measure.profiling import take_profile
from headrace.measure.seen import Seen

__all__ = [
    "Limit",
    "Machine",
    "Profile",
    "Seen",
    "find_limits",
    "forget_profile",
    "learn",
    "load_profile",
    "save_profile",
    "take_profile",
]
