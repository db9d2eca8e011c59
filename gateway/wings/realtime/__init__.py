"""Sessions of OpenAI's Realtime API over a WebSocket, between a client and an upstream.

`endpoints.py` has the client's side, `opening.py` finds an upstream, `accounts.py` settles answers, `transcription.py`
transcripts. `formats.py` has the API's words.
"""
