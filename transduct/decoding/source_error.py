"""An error that one source of a batch is to blame for, which callers who know it by another name can call by that."""


class SourceError(ValueError):
    """What is asked of one source cannot be met.

    Args:
        source: its number in the batch.
        problem: what it "has" or "may have", and what to do; the message is the source and this.
    """

    def __init__(self, source: int, problem: str):
        super().__init__(f"source {source} of the batch {problem}")
        self.source, self.problem = source, problem
