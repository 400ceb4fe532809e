"""Windows shared among processes: each text once, in order, and an error in one is told in all."""

import pytest

from launching import seen_by_each
from tiny_translation import tiny_translation
from transduct import evaluate, score, translate
from transduct.decoding.sharing import Processes


def capitals(texts, numbers):
    return [f"{number} {text.upper()}" for text, number in zip(texts, numbers, strict=True)]


def test_one_process_does_it_all():
    processes = Processes()
    assert (processes.count, processes.number, processes.is_main) == (1, 0, True)
    windows = [["a", "bb"], ["c"]]
    assert list(processes.windows(iter(windows))) == windows
    assert processes.share(capitals, ["a", "bb"], 7) == ["7 A", "8 BB"]
    assert processes.from_main(lambda: 5) == 5
    alone = Processes(shared=False)
    assert (alone.count, alone.number, alone.is_main) == (1, 0, True)


@pytest.mark.slow
def test_two_processes(tmp_path):
    both = seen_by_each("sharing_runs.py", tmp_path)
    pair, texts = tiny_translation(), ["abc", "", "hello there.", "a", "xyz xyz", "cab"]
    translated = translate(*pair, texts, do_sample=True, max_new_tokens=5)
    scored = score(*pair, texts, translated)
    evaluated = evaluate(*pair, [("abc", "a"), ("hello there.", "b"), ("a", "c")], ["wer"], max_new_tokens=5, resamples=0)
    windows = [["abc", "b" * 9, "c", "dd", "e" * 5], ["f"], []]
    for seen in both:
        assert seen["count"] == 2
        assert seen["read"] == windows
        assert seen["results"] == [[text.upper() for text in window] for window in windows]
        assert seen["bad"] == "line 12 is bad"
        assert seen["unreadable"] == "line 2 cannot be read"
        assert seen["decided"] == "by 0"
        assert seen["translated"] == translated
        assert seen["scored"] == pytest.approx(scored, abs=1e-5)
        assert seen["evaluated"] == evaluated
        expected = (
            "is no file that could",
            "nothing.txt",
            "is no file that could",
            "line 4 is bad",
            "--resume",
            "another input",
            "",
        )
        assert len(seen["of_main"]) == len(expected)
        assert all(part in told for part, told in zip(expected, seen["of_main"], strict=True)), seen["of_main"]
        assert seen["of_main"][-1] == ""
    assert (tmp_path / "out.txt").read_text() == "A\nB\nC\nD\n"
    # by turns, the longest first: 9, 5, 3, 2, 1 letters
    assert [seen["own"] for seen in both] == [[2, 1, 3, 6], [5, 4]]
