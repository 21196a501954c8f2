"""The one error that a user's input can cause."""


class InputError(ValueError):
    """Bad input, said in one sentence: where it is, what was expected, what was found, what to do.

    The command line prints it and leaves with exit status 2; nothing is written before it is raised.
    """

    def __init__(self, message: str, *, place: str | None = None) -> None:
        one_line = " ".join(message.split())
        super().__init__(f"{place}: {one_line}" if place else one_line)
        self.place = place
