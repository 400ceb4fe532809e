"""What is to blame is a number that a caller can turn into a name of its own."""

from transduct.decoding.source_error import SourceError


def test_the_source_and_the_problem_can_be_told_apart():
    error = SourceError(3, "has no possible output")
    assert isinstance(error, ValueError)
    assert str(error) == "source 3 of the batch has no possible output"
    assert f"line 7 {error.problem}" == "line 7 has no possible output"
    assert error.source == 3
