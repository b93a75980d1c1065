"""The one exception that a user can cause."""


class UserError(Exception):
    """One sentence: what was given, what is allowed, and where (file and field).

    The command line prints it without a traceback and exits with code 2.
    """
