"""The command `gateway init`: calls an upstream, finds its models and writes a configuration."""
