"""The admin API: the endpoints for operators."""
