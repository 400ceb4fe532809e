"""What was found, for people and for programs."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Literal

from transduct.terminal import printable

Level = Literal["ok", "note", "problem"]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Args:
        place: a heading, such as "packages", or the folder that it is about.
        level: "problem" if something will not work or not as it should; "note" for what is worth knowing.
        subject: what it is about, such as a package or a file.
        text: a sentence.
        value: the same for programs, where there is a number or a version.
    """

    place: str
    level: Level
    subject: str
    text: str
    value: Any = None


class Findings(list[Finding]):
    """Findings in the order in which they were made; `place` is that of the ones to come."""

    def __init__(self, place: str = ""):
        super().__init__()
        self.place = place

    def ok(self, subject: str, text: str, value: Any = None) -> None:
        self.append(Finding(self.place, "ok", subject, text, value))

    def note(self, subject: str, text: str, value: Any = None) -> None:
        self.append(Finding(self.place, "note", subject, text, value))

    def problem(self, subject: str, text: str, value: Any = None) -> None:
        self.append(Finding(self.place, "problem", subject, text, value))

    @contextmanager
    def within(self, place: str) -> Iterator[None]:
        """Inside, findings are about another place."""
        before, self.place = self.place, place
        try:
            yield
        finally:
            self.place = before

    def problems_of(self, subject: str) -> "ProblemsOf":
        """Inside, an exception is a problem with `subject`, and what comes after it is left out."""
        return ProblemsOf(self, subject)

    @property
    def problems(self) -> list[Finding]:
        return [finding for finding in self if finding.level == "problem"]

    def to_dict(self) -> dict[str, Any]:
        """For JSON: how many problems there are, and all findings."""
        return {"problems": len(self.problems), "findings": [asdict(finding) for finding in self]}

    def __str__(self) -> str:
        """A table under a heading for each place, problems marked, and their number.

        Places are as they were given. What stands in a folder is anybody's, see `printable`.
        """
        lines: list[str] = []
        width = min(28, max((len(printable(finding.subject)) for finding in self), default=0))
        place = None
        for finding in self:
            if finding.place != place:
                place = finding.place
                lines += ["", place] if lines else [place]
            mark = "PROBLEM" if finding.level == "problem" else finding.level
            lines.append(f"  {mark:<7}  {printable(finding.subject):<{width}}  {printable(finding.text)}".rstrip())
        count = len(self.problems)
        verdict = "no problem found" if count == 0 else "1 problem found" if count == 1 else f"{count} problems found"
        return "\n".join([*lines, "", verdict])


class ProblemsOf:
    """See `Findings.problems_of`."""

    def __init__(self, findings: Findings, subject: str):
        self.findings, self.subject = findings, subject

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> bool:
        if error is None or not isinstance(error, Exception):
            return False
        text = " ".join(str(error).split()) or type(error).__name__
        expected = isinstance(error, (ValueError, OSError, ImportError))
        self.findings.problem(self.subject, text if expected else f"{type(error).__name__}: {text}")
        return True
