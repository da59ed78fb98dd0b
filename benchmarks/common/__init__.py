"""What every benchmark shares: photos, process accounting, interleaved rounds, reports."""
