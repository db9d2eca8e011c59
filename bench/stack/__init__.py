"""`make stack`: the whole stack of processes under load, while its parts are restarted and killed."""
