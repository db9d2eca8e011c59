"""Translations between the formats of chat, Responses and Messages: requests, plain answers and streams. All pure.

`bridges.py` has the ways from a client's format to an upstream's. For each way there are two modules: `X_request` makes
the body for the upstream, `X_answer` makes the client's answer or events from the upstream's. X is the client's format;
`chat` is a chat client before an upstream with Messages. A member that cannot be translated exactly is refused by its
name; the tables (`fields.Rule`) name each one.
"""
