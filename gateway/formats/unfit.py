"""The error of an answer that cannot be passed on."""


class Unfit(Exception):
    """The upstream's answer does not fit the request and cannot be passed on; the text is the reason, for the log."""
