"""OpenAI's formats, and those that others write in its form: requests, readers of answers, errors."""
