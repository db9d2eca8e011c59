"""The whole stack in processes, under load, while its parts are restarted and die: `make stack`."""
