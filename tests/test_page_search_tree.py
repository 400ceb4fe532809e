"""Trees of searches: every hypothesis is a path, with the tokens and the sum that the search itself reports."""

import pytest
import torch

from tiny_translation import tiny_translation
from transduct.decoding.beam import SearchStep
from transduct.decoding.translator import TranslationOptions, Translator
from transduct.page.search_tree import Node, Recorder, SearchTree, Step, tree_of_samples


def names(tokens):
    return [f"t{token}" for token in tokens]


@pytest.mark.parametrize("beams", [1, 4])
def test_hypotheses_are_paths_of_the_tree(beams):
    model, tokenizer = tiny_translation(end=2.0)
    recorder = Recorder(names)
    options = TranslationOptions(
        num_beams=beams, num_return_sequences=beams, generation={"observer": recorder, "max_new_tokens": 8}
    )
    (found,) = Translator(model, tokenizer, options)(["cab ab"])
    tree = recorder.tree()
    assert len(found) == beams
    assert len(tree.steps) <= 8
    for each in found:
        places = tree.places(each.token_ids)
        assert len(places) == len(each.token_ids)
        path = tree.path(len(places) - 1, places[-1])
        assert [node.token for node in path] == list(each.token_ids)
        assert [node.label for node in path] == names(each.token_ids)
        assert path[-1].log_prob == pytest.approx(each.log_prob, abs=1e-4)
        assert path[-1] in tree.steps[len(places) - 1].ended
    for step in tree.steps:
        assert len(step.running) <= beams
        sums = [node.log_prob for node in step.running]
        assert sums == sorted(sums, reverse=True)


def test_beams_that_do_not_exist_are_no_nodes():
    recorder = Recorder(names)
    nothing = float("-inf")
    recorder(
        SearchStep(
            sources=torch.tensor([0]),
            scores=torch.tensor([[-1.0, -2.0, nothing, nothing]]),
            origins=torch.tensor([[0, 0, 1, 1]]),
            tokens=torch.tensor([[7, 1, 5, 6]]),
            ended=torch.tensor([[False, True, False, False]]),
            kept=torch.tensor([[0, -1]]),
        )
    )
    (step,) = recorder.tree().steps
    assert step.running == (Node(7, "t7", None, -1.0),)
    assert step.ended == (Node(1, "t1", None, -2.0),)


TREE = SearchTree(
    (
        Step((Node(5, "a", None, -1.0), Node(6, "b", None, -2.0)), ()),
        Step((Node(7, "c", 0, -2.0), Node(8, "d", 0, -3.0)), (Node(1, "e", 1, -3.5),)),
        Step((), (Node(1, "e", 1, -4.0),)),
    )
)


def test_places_and_paths():
    assert TREE.places([5, 8, 1]) == [0, 1, 0]
    assert TREE.places([6, 1]) == [1, 2]
    assert TREE.places([6, 8]) == [1]
    assert TREE.places([]) == []
    assert [node.label for node in TREE.path(2, 0)] == ["a", "d", "e"]


def test_survivors_are_ancestors():
    assert TREE.survivors(0) == [{0, 1}]
    assert TREE.survivors(1) == [{0, 1}, {0, 1, 2}]
    assert TREE.survivors(2) == [{0}, {1}, {0}]


def test_samples_share_their_beginnings():
    samples = [[5, 6, 1], [5, 7, 1], [5, 6, 1], [8, 1]]
    log_probs = [[-1.0, -0.5, -0.25], [-1.0, -2.0, -0.5], [-1.0, -0.5, -0.25], [-3.0, -1.0]]
    tree = tree_of_samples(samples, log_probs, names)
    assert [[node.label for node in step.nodes] for step in tree.steps] == [["t5", "t8"], ["t6", "t7", "t1"], ["t1", "t1"]]
    for sample, each in zip(samples, log_probs, strict=True):
        places = tree.places(sample)
        path = tree.path(len(sample) - 1, places[-1])
        assert [node.token for node in path] == sample
        assert path[-1].log_prob == pytest.approx(sum(each))
    assert tree_of_samples([], [], names).steps == ()
