"""Other programs see calls by HTTP, before and after, and may refuse or change them."""
