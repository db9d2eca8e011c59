"""A configuration out of that of LiteLLM's proxy: what can be converted, and a note for each thing that cannot.

The meaning of its settings is that of its public documentation (https://docs.litellm.ai/docs/proxy/configs and
/docs/proxy/config_settings, as of October 2026) and of its package, release 1.110.2. Keys and teams are in its
database; `database.py` reads rows of it. A secret of the file is not copied: the result names a variable for it.
"""
