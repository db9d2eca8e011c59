"""Tests of the wings, in a folder for each, and of the list of them."""
