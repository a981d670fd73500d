"""Other libraries' errors in one line."""


def first_line(error: BaseException) -> str:
    """What an error says, or its name if it says nothing."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
