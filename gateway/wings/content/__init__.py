"""Prompts and answers of calls, for a team's own store: as OTLP spans or in files. Off unless the file asks for it."""
