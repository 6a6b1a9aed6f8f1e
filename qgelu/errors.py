"""The one exception a user sees for bad input: one line that names the thing and the remedy."""


class QGeluError(ValueError):
    """Input that cannot be used; the message is one line with the thing's name and the remedy."""
