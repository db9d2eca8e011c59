"""What no door may break, over all doors: charges, quotas, ids, bytes and time."""
