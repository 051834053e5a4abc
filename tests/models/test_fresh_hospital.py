"""A hospital as a newcomer gives it: modes in another order, one hospital in a list, a model file where a run is asked for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import polyclinic as pc
from polyclinic.cli import main
from polyclinic.errors import DataError


@pytest.fixture(scope="module")
def known() -> pc.Phenotypes:
    value = pc.CPALS(rank=3, seed=0).fit(pc.datasets.icu_network(patients=300, seed=0)).result_
    assert isinstance(value, pc.Phenotypes)
    return value


def swapped(t: pc.SparseTensor) -> pc.SparseTensor:
    order = [0, 2, 1]
    return pc.SparseTensor(t.coords[:, order], t.values, [t.shape[n] for n in order], [t.axes[n] for n in order])


def renamed(t: pc.SparseTensor) -> pc.SparseTensor:
    """The same patients, one diagnosis under a code that the model does not know."""
    codes = t.axes[2]
    most = int(np.bincount(t.codes[1]).argmax())
    labels = [f"own-{x}" if i == most else x for i, x in enumerate(codes.labels or ())]
    return pc.SparseTensor(t.coords, t.values, t.shape, [*t.axes[:2], pc.Axis(codes.name, tuple(labels))])


def test_adapting_does_not_depend_on_the_order_of_modes(known: pc.Phenotypes) -> None:
    tensor = renamed(pc.datasets.icu_network(patients=300, seed=3)[2].counts())
    one, two = known.adapt(tensor, own=1), known.adapt(swapped(tensor), own=1)
    assert [a.labels for a in one.phenotypes.axes] == [a.labels for a in two.phenotypes.axes]
    np.testing.assert_allclose(one.own[1], two.own[1], atol=1e-8)
    np.testing.assert_allclose(one.transform(tensor), two.transform(swapped(tensor)), atol=1e-6)


def test_one_hospital_in_a_list_is_placed_and_several_are_refused(known: pc.Phenotypes) -> None:
    sites = pc.datasets.icu_network(patients=300, seed=0)
    np.testing.assert_array_equal(known.transform([sites[0]]), known.transform(sites[0]))  # type: ignore[call-overload]
    with pytest.raises(DataError, match="one at a time"):
        known.transform(sites)  # type: ignore[call-overload]


def test_compare_of_model_files_names_the_command(
    known: pc.Phenotypes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(known.save(tmp_path / "a.phenotypes"))
    with pytest.raises(SystemExit) as e:
        main(["compare", file, file])
    assert e.value.code
    assert "model diff" in "".join(capsys.readouterr())
