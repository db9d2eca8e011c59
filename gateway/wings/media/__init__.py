"""Images and sound: OpenAI's images, speech, transcriptions and translations."""
