"""How a campaign says that it cannot go on before people have labelled."""


class Waiting(Exception):
    """These trajectories of the store need a label."""

    def __init__(self, ids: list[int]) -> None:
        super().__init__(f"{len(ids)} trajectories wait for a label")
        self.ids = ids
