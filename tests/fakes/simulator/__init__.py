"""The tests' simulated upstream: `gateway simulate` with the formats that only tests need, and one ledger of both.

    python -m tests.fakes.simulator --port 8081

Further are Gemini's API, stored and background responses, conversations, files, batches, message batches, audio,
images, Realtime and the tasks of resellers.
"""
