"""The table of devices."""

import pytest

from transduct.training.devices import DEVICES, device_named


def test_devices_are_plausible():
    for name, device in DEVICES.items():
        assert device.single <= device.tf32 <= device.half, name
        assert device.single > 1e12
        assert 10 < device.memory < 300
    assert device_named("h100").half == 989.4e12


@pytest.mark.parametrize(("name", "hint"), [("a100", "a100-40 or a100-80"), ("H200", "h200"), ("tpu", "known are a100-40")])
def test_unknown_devices_get_a_hint(name, hint):
    with pytest.raises(ValueError, match=f"gpu='{name}' is unknown: .*{hint}"):
        device_named(name)
