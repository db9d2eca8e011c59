"""Ways between stores: `gateway export`, `gateway import store` and `gateway restore`."""
