"""Rates of mixtures against the formulas of the T5 paper, and draws against the rates."""

import numpy as np
import pytest

from transduct.training.mixing import drawn_parts, mixing_rates, weighted_rates


def test_proportional_to_the_number_of_rows():
    assert mixing_rates([100, 300, 600]).tolist() == pytest.approx([0.1, 0.3, 0.6])


@pytest.mark.parametrize("temperature", [0.5, 1, 2, 5])
@pytest.mark.parametrize("cap", [None, 1, 50, 1000])
def test_the_formula_with_temperature_and_cap(temperature, cap):
    sizes = np.array([10, 60, 2000])
    expected = np.minimum(sizes, np.inf if cap is None else cap) ** (1 / temperature)
    np.testing.assert_allclose(mixing_rates(sizes.tolist(), temperature, cap), expected / expected.sum(), rtol=1e-12)


def test_a_large_temperature_draws_all_equally_and_huge_sizes_do_not_overflow():
    np.testing.assert_allclose(mixing_rates([10, 10**9], temperature=1e9), [0.5, 0.5], rtol=1e-6)
    np.testing.assert_allclose(mixing_rates([10**12, 10**12, 1], temperature=0.01), [0.5, 0.5, 0], atol=1e-12)


def test_weights():
    assert weighted_rates([2, 1, 1]).tolist() == [0.5, 0.25, 0.25]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mixing_rates([]), "a mixture needs parts"),
        (lambda: mixing_rates([5, 0]), r"sizes=\[5, 0\]"),
        (lambda: mixing_rates([5], temperature=0), "temperature=0 must be positive"),
        (lambda: mixing_rates([5], cap=0), "cap=0 must be at least 1"),
        (lambda: weighted_rates([1, 0]), r"weights=\[1, 0\] must be positive"),
        (lambda: weighted_rates([1, float("inf")]), "must be positive numbers"),
    ],
)
def test_values_out_of_range(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_draws_follow_the_rates_and_depend_on_seed_and_block_alone():
    rates = np.array([0.6, 0.3, 0.1])
    drawn = np.concatenate([drawn_parts(rates, 1000, seed=3, block=block) for block in range(20)])
    shares = np.bincount(drawn) / len(drawn)
    assert np.abs(shares - rates).max() < 4 * np.sqrt(0.25 / len(drawn))  # four standard errors at most
    assert drawn_parts(rates, 50, 3, 7).tolist() == drawn_parts(rates, 50, 3, 7).tolist()
    assert drawn_parts(rates, 50, 3, 7).tolist() != drawn_parts(rates, 50, 3, 8).tolist()
    assert drawn_parts(rates, 50, 3, 7).tolist() != drawn_parts(rates, 50, 4, 7).tolist()
