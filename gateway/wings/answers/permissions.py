"""The roles that may read the two answers."""

from __future__ import annotations

from gateway.identity.permissions import WingRows

ROWS = WingRows("""\
GET    /admin/api/money                    all       team  -       all     -
GET    /admin/api/problems                 all       team  -       all     -
""")
