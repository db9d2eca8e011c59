"""The commands of this wing."""

from gateway.cli import Command

EXPORT = Command("export", "write all that a store has to a file", takes_config=True, module="wings.transfer.export")
IMPORT = Command("import store", "a file of gateway export", takes_config=True, module="wings.transfer.import_store")
RESTORE = Command(
    "restore", "put a backup in the place of the embedded store", takes_config=True, module="wings.transfer.restore"
)
