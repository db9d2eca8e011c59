"""Members and headers of requests that the configuration sets, adds or removes, by model and alias."""
