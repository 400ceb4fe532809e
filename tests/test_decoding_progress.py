"""The bar of long decoding: on standard error, and only where it is wanted."""

from tiny_translation import tiny_translation
from transduct import score, translate


def test_only_where_it_is_wanted(capsys):
    model, tokenizer = tiny_translation()
    options = dict(num_beams=1, max_length_by_source=(0, 1))
    translate(model, tokenizer, ["ab", "c"], **options)
    assert capsys.readouterr() == ("", "")
    translate(model, tokenizer, ["ab", "c"], progress=True, window=1, **options)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "translating" in printed.err
    assert "2/2" in printed.err
    score(model, tokenizer, ["ab"], ["c"], progress=True)
    assert "scoring" in capsys.readouterr().err
