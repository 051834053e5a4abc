"""The device is this process's own affair, and says why it cannot be had."""

import importlib.util
import logging

import numpy as np
import pytest

import polyclinic as pc
from polyclinic.errors import ConfigError
from polyclinic.tensors import device

BARE = importlib.util.find_spec("cupy") is None


@pytest.mark.skipif(not BARE, reason="CuPy is installed here")
def test_without_a_card_cuda_says_why_before_data_are_read() -> None:
    with pytest.raises(ConfigError, match="no CUDA device: CuPy is not installed") as e:
        pc.use_device("cuda")
    assert "polyclinic[cuda13]" in str(e.value.hint)
    with pytest.raises(ConfigError, match="no CUDA device"):
        pc.CPALS(rank=2, device="cuda").fit(pc.datasets.icu_network(patients=60, seed=0))
    with pytest.raises(ConfigError, match="'gpu' is not known"):
        pc.use_device("gpu")  # type: ignore[arg-type]


def test_auto_stays_on_the_processor_for_small_data_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    sites = pc.datasets.icu_network(patients=120, seed=0)
    here = pc.CPALS(rank=2, rounds=3, seed=0).fit(sites)
    with caplog.at_level(logging.INFO, logger="polyclinic.tensors.device"):
        there = pc.CPALS(rank=2, rounds=3, seed=0, device="auto").fit(sites)
    assert "the processor, because" in caplog.text
    assert "fewer than 5,000,000" in caplog.text
    assert all(np.array_equal(a, b) for a, b in zip(here.factors_, there.factors_))


def test_the_block_gives_the_device_back(monkeypatch: pytest.MonkeyPatch) -> None:
    with device.using("auto"):
        assert device._device == "auto"
    assert device._device == "cpu"  # type: ignore[comparison-overlap]


def test_the_device_is_in_the_nodes_file_and_in_no_study() -> None:
    node = pc.Node.parse({"site": {"name": "a", "device": "auto"}, "source": {"kind": "files", "events": "e.csv"}})
    assert node.site.device == "auto"
    assert not {"device"} & set(pc.Study.model_fields)
    assert "device" not in pc.SumALS(rank=2).get_params()
