"""The admin API: endpoints for operators, and sign-in."""
