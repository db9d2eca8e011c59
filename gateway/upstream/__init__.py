"""The other side: connections to an upstream, and how providers differ."""
