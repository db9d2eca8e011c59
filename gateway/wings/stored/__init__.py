"""Objects that upstreams keep under ids: stored responses, conversations, files, batches and message batches.

`endpoints.py` has their routes, `kept.py` the requests for one of them and for a page; `layers.py` binds new ones, and
`binding.py` looks up those that calls name. `formats.py` reads batches, and
`batch_results.py` their results.
Which key an id belongs to is kept by `accounting/bonds.py`, because answers of plain calls are bound, too.
"""
