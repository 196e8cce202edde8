"""`sweep:` expands to experiments, or to an error that names the path and the value."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.errors import SpecError
from testbed.experiment.experiment import Experiment, validate
from testbed.experiment.sweep import MAX_POINTS, expand, load_sweep, sweep_schema, value_text


def wrong(sweep: Any, **keys: Any) -> str:
    with pytest.raises(SpecError) as caught:
        expand({"name": "x", "sweep": sweep, **keys})
    return str(caught.value)


def test_every_combination_is_a_point_and_the_last_axis_varies_fastest() -> None:
    swept = {"link.rate": ["100mbit", "1gbit"], "compression": ["none", {"kind": "top_k", "ratio": 0.01}]}
    sweep = expand({"name": "x", "workers": 3, "sweep": swept})
    assert [point.text for point in sweep.points] == [
        "link.rate=100mbit compression=none",
        "link.rate=100mbit compression=top_k(ratio=0.01)",
        "link.rate=1gbit compression=none",
        "link.rate=1gbit compression=top_k(ratio=0.01)",
    ]
    last = sweep.points[-1].experiment
    assert (last.workers, last.link.rate_bps, last.compression.kind) == (3, 1e9, "top_k")
    assert [axis.paths for axis in sweep.axes] == [("link.rate",), ("compression",)]


def test_a_point_is_the_experiment_that_its_settings_would_make_by_themselves() -> None:
    sweep = expand({"name": "x", "sweep": {"link.delay": ["1ms", "2ms"]}})
    alone = validate({"name": "x", "link": {"delay": "2ms"}})
    assert sweep.points[1].experiment.sha256() == alone.sha256()


def test_paths_that_vary_together_are_one_axis() -> None:
    swept = {"collective, stack": [["ring", None], ["halving_doubling", None], ["ring", "gloo"]]}
    sweep = expand({"name": "x", "sweep": swept})
    kinds = [
        (p.experiment.collective.kind, p.experiment.stack.kind if p.experiment.stack else None) for p in sweep.points
    ]
    assert kinds == [("ring", None), ("halving_doubling", None), ("ring", "gloo")]


def test_an_option_of_a_value_that_varies_too_is_kept_whatever_their_order() -> None:
    swept = {"compression.ratio": [0.01, 0.1], "compression": ["top_k", "random_k"]}
    ratios = {
        (p.experiment.compression.kind, p.experiment.compression.model_dump()["ratio"])
        for p in expand({"name": "x", "sweep": swept}).points
    }
    assert ratios == {("top_k", 0.01), ("top_k", 0.1), ("random_k", 0.01), ("random_k", 0.1)}


def test_a_spec_without_a_sweep_is_one_point() -> None:
    sweep = expand({"name": "x"})
    assert sweep.is_single_run
    assert [point.experiment for point in sweep.points] == [validate({"name": "x"})]
    assert not expand({"name": "x", "repeat": 2}).is_single_run


@pytest.mark.parametrize(
    ("sweep", "words"),
    [
        ({"link.rate": ["100mbit", "fast"]}, ["link.rate", "'fast'", "[link.rate=fast]"]),
        ({"link.rat": ["1gbit"]}, ["link.rat: unknown key; allowed", "rate"]),
        ({"workers": [2, 1], "seed": [1, 2]}, ["workers", "workers=1 seed=1 and 1 more points"]),
        ({"link.rate": []}, ["sweep.link.rate: a list of at least one value"]),
        ({"link.rate": "1gbit"}, ["sweep.link.rate: a list", "'1gbit'"]),
        ({"link": {"rate": ["1gbit"]}}, ["sweep.link: write the whole path as one key", "`link.rate: [...]`"]),
        ({"link.rate": ["1gbit", "1000mbit"]}, ["[link.rate=1gbit] and [link.rate=1000mbit] are the same experiment"]),
        ({"link..rate": ["1gbit"]}, ["no path of a setting"]),
        ({"name": ["a", "b"]}, ["no path of a setting"]),
        ({"repeat": [1]}, ["no path of a setting"]),
        ({"where": [{}]}, ["no path of a setting"]),
        ({"seed, workers": [[1, 2], [3]]}, ["each value is a list of 2", "[3]"]),
        ({"seed": [1], "seed, workers": [[1, 2]]}, ["sweep.seed: it varies twice"]),
        ({"seed": list(range(MAX_POINTS + 1))}, ["1,001 points; allowed: at most 1,000"]),
        ([1], ["sweep: a mapping from paths to lists"]),
    ],
)
def test_errors_name_the_path_and_the_value(sweep: Any, words: list[str]) -> None:
    message = wrong(sweep)
    for word in words:
        assert word in message


@pytest.mark.parametrize("repeat", [0, -1, True, "2", 1.5, None])
def test_repeat_is_a_number_of_runs(repeat: Any) -> None:
    assert "repeat: a whole number" in wrong({}, repeat=repeat)


@pytest.mark.parametrize("order_seed", [-1, 2**32, True, "2", 1.5, None])
def test_the_orders_seed_is_a_number(order_seed: Any) -> None:
    assert "order_seed: a whole number, 0 to 4294967295" in wrong({}, order_seed=order_seed)


def test_overrides_narrow_where_by_path_and_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text("name: x\nsweep: {link.rate: [100mbit, 1gbit], seed: [1, 2]}\nwhere: {seed: 1}\norder_seed: 5\n")

    def points(*overrides: str) -> list[str]:
        return [point.text for point in load_sweep(path, overrides).points]

    assert load_sweep(path).order_seed == 5
    assert points() == ["link.rate=100mbit seed=1", "link.rate=1gbit seed=1"]
    assert points("where.link.rate=1gbit") == ["link.rate=1gbit seed=1"]
    assert points("where=[{seed: 2, link.rate: 1gbit}]") == ["link.rate=1gbit seed=2"]
    assert len(points("where={}")) == 4
    with pytest.raises(SpecError, match=r"spec\.yaml: where\.link\.rate: '2gbit' is none"):
        points("where.link.rate=2gbit")
    with pytest.raises(SpecError, match=r"--set where\.seed=1: `where` is no mapping here; set it as a whole"):
        points("where=[{seed: 2}]", "where.seed=1")


def test_overrides_change_what_every_point_shares_add_axes_and_narrow_them(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text("name: x\nsweep:\n  link.rate: [100mbit, 1gbit]\n")
    sweep = load_sweep(path, ["workers=2", "sweep.link.rate=[10mbit]", "sweep.seed=[1, 2]", "repeat=3"])
    assert [point.text for point in sweep.points] == ["link.rate=10mbit seed=1", "link.rate=10mbit seed=2"]
    assert (sweep.points[0].experiment.workers, sweep.repeat) == (2, 3)
    with pytest.raises(SpecError, match=r"link\.rate is varied by `sweep`; narrow it"):
        load_sweep(path, ["link.rate=1gbit"])
    with pytest.raises(SpecError, match=r"spec\.yaml: link\.rate: .*'x'.*\[link\.rate=x\]"):
        load_sweep(path, ["sweep.link.rate=[x]"])


def test_files_named_in_a_swept_topology_lie_beside_the_spec(tmp_path: Path) -> None:
    network = "switches: {s0: 2, s1: 2}\nlinks: [{between: [s0, s1]}]\n"
    (tmp_path / "network.yaml").write_text(network)
    path = tmp_path / "spec.yaml"
    path.write_text("name: x\nsweep:\n  topology: [star, {kind: file, path: network.yaml}]\n")
    assert load_sweep(path).points[1].experiment.topology.kind == "file"
    (only,) = load_sweep(path, [f"where.topology={{kind: file, path: {tmp_path / 'network.yaml'}}}"]).points
    assert only.experiment.topology.kind == "file"
    path.write_text(f"{path.read_text()}where: {{topology: {{kind: file, path: network.yaml}}}}\n")
    (only,) = load_sweep(path).points
    assert only.experiment.topology.kind == "file"


def test_values_are_written_short() -> None:
    values = [
        "1gbit",
        None,
        True,
        3,
        {"kind": "top_k", "ratio": "1%"},
        {"kind": "star"},
        {"bytes": "1MiB"},
        {},
        ["a", 1],
        {"file": "resnet50.txt", "layers": "Id Name Forward Backward Comm Size\n1 conv 1 2 - 64\n"},
    ]
    assert [value_text(value) for value in values] == [
        "1gbit",
        "null",
        "true",
        "3",
        "top_k(ratio=1%)",
        "star",
        "bytes=1MiB",
        "{}",
        "[a,1]",
        "resnet50.txt",
    ]


def test_the_schema_knows_sweep_and_repeat_beside_every_key_of_an_experiment() -> None:
    assert set(sweep_schema()["properties"]) == {*Experiment.model_json_schema(by_alias=True)["properties"]} | {
        "sweep",
        "where",
        "repeat",
        "order_seed",
    }


@settings(max_examples=100)
@given(
    st.dictionaries(
        st.sampled_from(["link.rate", "seed", "workers", "stack", "a.b", ",", ""]),
        st.lists(st.sampled_from([1, 2, "1gbit", None, "gloo", [], {}]), max_size=3) | st.integers(),
        max_size=3,
    )
)
def test_any_sweep_is_points_or_a_spec_error(sweep: dict[str, Any]) -> None:
    with contextlib.suppress(SpecError):
        assert expand({"name": "fuzz", "sweep": sweep}).points


def test_what_is_wrong_without_a_sweep_is_said_without_a_point() -> None:
    with pytest.raises(SpecError, match=r"^fusion: [^\[\n]*$"):
        expand({"name": "x", "fusion": "lots"})
