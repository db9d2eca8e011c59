"""Rules that hold at every door of the gateway, tested on doors that its own tables name."""
