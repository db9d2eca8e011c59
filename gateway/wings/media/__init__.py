"""Models that write no text: OpenAI's images, speech, transcriptions and translations, and reranks."""
