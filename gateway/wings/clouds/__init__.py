"""Clouds as upstreams: credentials that renew themselves, and addresses of their own.

`auth.py` has the settings; `source.py` obtains what authorizes requests, by vendors' libraries where there are any, and
`renewal.py` keeps it valid. `addresses.py` writes the paths and bodies that clouds want, `event_stream.py` reads the
answers of Amazon Bedrock. `pool.py` and the other modules are parts for the trunk.
"""
