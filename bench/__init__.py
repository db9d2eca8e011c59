"""What the gateway costs beside nginx, on this machine: `make bench`."""
