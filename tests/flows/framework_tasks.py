"""What the programs of frameworks do with the tasks of a test: read them, and write an answer or an error of each.

The programs import it from their own folder. They run on the packages that .ci/servers installs, not on those of the
tests. Address, key and model come with each task; retries are as people have them.
"""

import json
import sys


def answer(ask):
    """`ask` takes one task; an exception of it is an answer, too."""
    json.dump([_received(ask, task) for task in json.load(sys.stdin)], sys.stdout)


def _received(ask, task):
    try:
        return ask(task)
    except Exception as error:
        code = getattr(error, "code", None)
        return {"error": {"name": type(error).__name__, "code": code, "message": str(error)}}
