"""Anthropic's Messages API: requests, the reader of answers, errors."""
