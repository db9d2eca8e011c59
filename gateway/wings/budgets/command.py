"""The row of `gateway people` in the table of commands."""

from gateway.cli import Command

PEOPLE = Command("people", "end the sessions of a person who signed in", takes_config=True, module="wings.budgets.run")
