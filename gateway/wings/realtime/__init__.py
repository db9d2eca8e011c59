"""Sessions of OpenAI's Realtime API over a WebSocket, between a client and an upstream.

`endpoints.py` has the client's side, `opening.py` finds an upstream, `accounts.py` settles answers, `transcription.py`
transcripts. The API's words are in `formats/openai/realtime.py`, because the table of formats has them.
"""
