"""Gemini's API: requests, the reader of answers, errors."""
