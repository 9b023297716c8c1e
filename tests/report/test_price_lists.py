"""Rents from price lists of others, in excerpts as they are published; `bench prices` shows all quotes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.base.errors import BadInput
from bench.base.gpu_catalogue import find_gpu_model, gpu_models, near_gpus
from bench.cli.main import main
from bench.report.compare.price_file import load_prices, shipped_prices
from bench.report.compare.price_lists import INDEX_COLUMNS, KINDS, SKYPILOT_COLUMNS, rents_in
from bench.report.compare.prices import Priced

INDEX = """\
date,collected_at,source,provider,segment,pricing,gpu_model,sku,region,geo,gpu_count,usd_per_hour,usd_per_gpu_hour,sample_size
2026-10-10,2026-10-10T12:33:53+00:00,aws,AWS,hyperscaler,on_demand,H100,p5.48xlarge,ap-northeast-1,APAC,8,68.8,8.6,1
2026-10-10,2026-10-10T12:33:53+00:00,aws,AWS,hyperscaler,on_demand,H100,p5.48xlarge,us-east-1,NA,8,55.04,6.88,1
2026-10-10,2026-10-10T12:33:53+00:00,aws,AWS,hyperscaler,on_demand,H100,p5.4xlarge,us-east-1,NA,1,6.88,6.88,1
2026-10-10,2026-10-10T12:33:53+00:00,azure,Microsoft Azure,hyperscaler,on_demand,A100-80GB-PCIe,Standard_NC24ads_A100_v4,eastus,NA,1,3.673,3.673,1
2026-10-10,2026-10-10T12:33:53+00:00,azure,Microsoft Azure,hyperscaler,on_demand,A100-40GB,Standard_ND96asr_v4,eastus,NA,8,27.197,3.3996,1
2026-10-10,2026-10-10T12:33:53+00:00,somebody,Somebody,market,median,H100,any,any,NA,1,3.2,3.2,40
"""  # noqa: E501
SKYPILOT = """\
InstanceType,UpstreamCloudId,vCPUs,MemoryGiB,AcceleratorName,AcceleratorCount,GpuInfo,Region,Price,SpotPrice
1B300.30V,1B300.30V,30.0,275.0,B300,1.0,"{""Gpus"": [{""Name"": ""B300""}]}",FIN-03,6.99,2.447
2B300.60V,2B300.60V,60.0,550.0,B300,2.0,"{""Gpus"": [{""Name"": ""B300""}]}",FIN-03,,4.893
1A100.22V,1A100.22V,22.0,120.0,A100-80GB,1.0,"{""Gpus"": []}",FIN-01,1.29,0.4515
1V100.6V,1V100.6V,6.0,23.0,V100,1.0,"{""Gpus"": []}",FIN-01,0.1381,
1RTX6000ADA.10V,1RTX6000ADA.10V,10.0,60.0,RTX-6000-Ada,1.0,"{""Gpus"": []}",FIN-03,0.8262,
CPU.4V.16G,CPU.4V.16G,4.0,16.0,,,,FIN-01,0.0279,0.0098
"""
B300 = "NVIDIA B300 SXM6 AC"


def told(imported: Any) -> list[tuple[str, int | None, float, str, str]]:
    return [(rent.gpu[0], rent.gpus, rent.price, rent.kind, rent.provider) for rent in imported.rents]


def test_a_day_of_the_price_index_gives_the_cheapest_rent_of_each_machine() -> None:
    imported = rents_in(INDEX, "day.csv", provider=None, date=None)
    assert told(imported) == [
        ("NVIDIA A100 80GB PCIe", 1, 3.673, "on-demand", "Microsoft Azure"),
        ("NVIDIA A100-SXM4-40GB", 8, 27.197, "on-demand", "Microsoft Azure"),
        ("NVIDIA H100 80GB HBM3", 1, 6.88, "on-demand", "AWS"),
        ("NVIDIA H100 80GB HBM3", 8, 55.04, "on-demand", "AWS"),
    ]
    assert imported.rents[3].source == "p5.48xlarge us-east-1; gpu-price-index"
    assert {rent.date for rent in imported.rents} == {"2026-10-10"}
    assert imported.remarks == ("1 row without a price or a whole number of GPUs",)


def test_skypilots_catalogue_gives_rents_on_demand_and_spot() -> None:
    imported = rents_in(SKYPILOT, "vms.csv", provider="Verda", date="2026-11-01")
    assert told(imported) == [
        ("NVIDIA A100-SXM4-80GB", 1, 1.29, "on-demand", "Verda"),
        ("NVIDIA A100-SXM4-80GB", 1, 0.4515, "spot", "Verda"),
        (B300, 1, 6.99, "on-demand", "Verda"),
        (B300, 1, 2.447, "spot", "Verda"),
        (B300, 2, 4.893, "spot", "Verda"),
        ("NVIDIA RTX 6000 Ada Generation", 1, 0.8262, "on-demand", "Verda"),
    ]
    assert imported.remarks == ("1 row of GPUs that bench does not know: V100",)


@pytest.mark.parametrize(
    ("text", "given", "said"),
    [
        (SKYPILOT, {"provider": "Verda"}, "add --date"),
        (SKYPILOT, {}, "add --provider and --date"),
        (SKYPILOT, {"provider": "Verda", "date": ""}, "add --date"),
        (SKYPILOT, {"provider": "", "date": "2026-11-01"}, "add --provider"),
        ("gpu,price\nH100,3\n", {}, "is no price list that bench knows"),
        ("", {}, "is no price list that bench knows"),
    ],
)
def test_a_list_that_says_too_little_is_refused(text: str, given: dict[str, str], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        rents_in(text, "list.csv", **{"provider": None, "date": None, **given})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("pricing", "kind"), [("on_demand", "on-demand"), ("spot", "spot"), ("reserved", "reserved")]
)
def test_a_rent_of_the_price_index_keeps_its_kind(pricing: str, kind: str) -> None:
    imported = rents_in(INDEX.replace("on_demand", pricing), "day.csv", provider=None, date=None)
    assert {rent.kind for rent in imported.rents} == {kind}


@pytest.mark.parametrize("count", ["0", "0.5", "two", "nan", ""])
def test_a_row_without_a_whole_number_of_gpus_is_named_and_left_out(count: str) -> None:
    imported = rents_in(INDEX.replace(",8,68.8,", f",{count},68.8,"), "day.csv", provider=None, date=None)
    assert len(imported.rents) == 4
    assert imported.remarks == ("2 rows without a price or a whole number of GPUs",)


# Commands


def index_row(count: str = "8", dollars: str = "10", region: str = "eu") -> str:
    values = {
        "sku": "x", "region": region, "gpu_model": "H100", "gpu_count": count, "usd_per_hour": dollars,
        "pricing": next(iter(KINDS)), "provider": "p", "date": "2026-06-01",
    }  # fmt: skip
    return ",".join(values[column] for column in sorted(INDEX_COLUMNS))


def rents_of(*rows: str) -> list[tuple[int | None, float]]:
    """Read a list that has no other columns than those that are needed."""
    text = "\n".join([",".join(sorted(INDEX_COLUMNS)), *rows])
    return [(rent.gpus, rent.price) for rent in rents_in(text, "x", provider=None, date=None).rents]


def test_only_whole_gpus_at_a_finite_price_above_nothing_become_a_rent() -> None:
    assert rents_of(index_row("1", "0.01")) == [(1, 0.01)]
    for count in ("0", "-1", "0.5", "1.5", "nan", "inf", "", "x"):
        assert rents_of(index_row(count)) == [], count
    for dollars in ("0", "-1", "nan", "inf", "", "x"):
        assert rents_of(index_row("8", dollars)) == [], dollars


def test_of_several_rents_of_a_machine_the_cheapest_counts_and_of_equal_ones_the_first() -> None:
    assert rents_of(index_row("8", "9"), index_row("8", "7"), index_row("8", "8")) == [(8, 7.0)]
    text = "\n".join([",".join(sorted(INDEX_COLUMNS)), index_row(region="first"), index_row(region="second")])
    (rent,) = rents_in(text, "x", provider=None, date=None).rents
    assert "first" in rent.source


def test_skypilots_catalogue_needs_no_columns_but_those_that_are_read() -> None:
    columns = sorted(SKYPILOT_COLUMNS)
    values = {"AcceleratorName": "H100", "AcceleratorCount": "8", "Price": "10", "SpotPrice": ""}
    text = ",".join(columns) + "\n" + ",".join(values.get(column, "x") for column in columns)
    found = rents_in(text, "x", provider="p", date="2026-06-01").rents
    assert [(rent.gpus, rent.price, rent.kind) for rent in found] == [(8, 10.0, "on-demand")]


@pytest.mark.parametrize(
    ("provider", "date", "advice"),
    [
        (None, None, "add --provider and --date"),
        ("p", None, "add --date"),
        (None, "2026-06-01", "add --provider"),
        ("", "2026-06-01", "add --provider"),
    ],
)
def test_skypilots_catalogue_needs_provider_and_day(
    provider: str | None, date: str | None, advice: str
) -> None:
    with pytest.raises(BadInput, match="says neither provider nor day") as caught:
        rents_in(",".join(sorted(SKYPILOT_COLUMNS)), "x", provider=provider, date=date)
    assert caught.value.advice == advice


def test_an_imported_list_is_a_file_of_prices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listed, out = tmp_path / "vms.csv", tmp_path / "verda.json"
    listed.write_text(SKYPILOT)
    day = ("--provider", "Verda", "--date", "2026-11-01")
    assert main(["prices", "import", str(listed), *day, "-o", str(out)]) == 0
    assert "V100" in capsys.readouterr().err
    book = load_prices(out)
    single = book.to_rent(B300, 1)
    assert isinstance(single, Priced) and single.amount == 2.447  # of all kinds: compare chooses one
    assert main(["prices", "b300", "--prices", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "Verda (spot)" in shown and "AWS" not in shown  # your own rents replace the shipped ones


def test_a_list_without_a_date_of_this_form_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = tmp_path / "vms.csv"
    listed.write_text(SKYPILOT)
    assert main(["prices", "import", str(listed), "--provider", "Verda", "--date", "1 Nov"]) == 2
    assert '"1 Nov" is no date' in capsys.readouterr().err


def test_prices_are_shown_in_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prices"]) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) < 80
    assert "8x H200" in shown and "machine for 8 GPUs" in shown and "no rent is known for" in shown
    assert main(["prices", "h200", "--kind", "spot"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("(spot)") == len(shown.splitlines()) - 2 > 0


def test_old_quotes_are_named_and_the_command_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prices", "--stale", "30000d"]) == 0
    assert "no quote is from before" in capsys.readouterr().out
    assert main(["prices", "--stale", "1h", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert len(document["rents"]) == len(shipped_prices().rents)


def test_an_unknown_gpu_is_answered_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prices", "h2000"]) == 2
    assert "nearest: NVIDIA H200" in capsys.readouterr().err


# What ships


def test_every_shipped_rent_is_of_a_card_of_the_catalogue_with_provider_and_source() -> None:
    names = {gpu.name for gpu in gpu_models()}
    rents = shipped_prices().rents
    assert len(rents) > 100
    assert all({*rent.gpu} <= names and rent.provider and rent.gpus and rent.source for rent in rents)


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("b200", "NVIDIA B200"), ("gb200", "NVIDIA GB200"), ("gh200 144", "NVIDIA GH200 144G HBM3e"),
        ("a10", "NVIDIA A10"), ("a10g", "NVIDIA A10G"), ("l40", "NVIDIA L40"),
        ("rtx5090", "NVIDIA GeForce RTX 5090"), ("rtx 6000 ada", "NVIDIA RTX 6000 Ada Generation"),
        ("pro 6000 server", "NVIDIA RTX PRO 6000 Blackwell Server Edition"), ("dgx spark", "NVIDIA GB10"),
        ("mi300x", "AMD Instinct MI300X OAM"), ("h100", "NVIDIA H100 80GB HBM3"),
    ],
)  # fmt: skip
def test_cards_of_2026_are_found_as_people_type_them(typed: str, name: str) -> None:
    found = find_gpu_model(typed)
    assert found is not None and found.name == name


def test_every_card_has_a_source_and_plausible_rates() -> None:
    assert len({gpu.name for gpu in gpu_models()}) == len(gpu_models()) >= 32
    for gpu in gpu_models():
        assert gpu.source
        assert gpu.bf16_tflops >= gpu.tf32_tflops >= gpu.fp32_tflops > 0
        assert (
            0.5 < (gpu.measured_bf16_tflops or gpu.bf16_tflops) / gpu.bf16_tflops < 1.1
        )  # above the boost clock
        assert gpu.runs_bench == (gpu.vendor == "NVIDIA")


def test_a_card_on_which_bench_does_not_run_is_estimated_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = tmp_path / "m.json"
    manifest.write_text('{"schema": "bench/manifest/v1", "models": ["pythia-160m"], "methods": "naive"}')
    assert main(["plan", str(manifest), "--gpu", "mi300x"]) == 2
    assert "bench does not run on AMD Instinct MI300X OAM" in capsys.readouterr().err
    assert near_gpus("b400").startswith("nearest: NVIDIA B200")


def test_no_text_of_a_price_list_moves_the_cursor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    odd = "\x1b]0;owned\x07\u202e\nNVIDIA H200  0.01"
    quote = {"date": "2026-06-01", "source": odd}
    document = {
        "schema": "bench/prices/v1", "currency": "USD", "shipped": False,
        "rents": [{"gpu": [odd], "price": 3, "provider": odd, **quote}],
        "gpus": [{"gpu": [odd], "price": 3, **quote}],
        "machines": [{"gpu": [odd], "gpus": 1, "price": 3, **quote}],
        "systems": [{"gpus": 1, "price": 3, **quote}],
    }  # fmt: skip
    prices = tmp_path / "prices.json"
    prices.write_text(json.dumps(document))
    assert main(["prices", "--prices", str(prices)]) == 0
    said = capsys.readouterr()
    assert all(line.isprintable() for line in (said.out + said.err).split("\n"))
    assert not any(line.startswith("NVIDIA H200  0.01") for line in said.out.split("\n"))
