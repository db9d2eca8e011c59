"""The bills of providers beside the gateway's records, by day and model, as a file or read every hour.

A file: `invoice.py` reads a provider's export, `compare.py` matches days and models, `comparison.py` has the rows,
tables and notes; `question.py` asks the store, `usage.py` adds the option to `gateway usage`. `endpoints.py` has the
operations of the admin API.

The bill itself: `bill.py` has its lines; `openai.py`, `anthropic.py`, `openrouter.py`, `newapi.py`, `oneapi.py` and
`litellm.py` read one provider each, `account.py` asks it; `recorded.py` reads the gateway's side, `explain.py` divides
a difference into causes, `repeated.py` takes a last guess, and `statement.py` shows them. `background.py` reads all
bills in one worker, `posted.py` passes them on to the others. `layers.py` and `generations.py` note the ids of single
calls, and `singles.py` asks for those that a difference is made of. `findings.py` has what is wrong for the wing
`answers`. `month.py` has the statement of a month. `simulated_vendor.py` is a provider for the demo and for tests,
`demo_history.py` its bills in the demo.
"""
