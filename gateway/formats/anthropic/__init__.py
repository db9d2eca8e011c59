"""Anthropic's Messages API and its batches: requests, the reader of answers, errors."""
