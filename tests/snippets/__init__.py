"""Tests that run the commands and examples of the README and the pages of docs."""
