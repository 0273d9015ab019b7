"""The month's bill: the figures of the design's own sums, and what must hold whatever the load."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import pytest
from typer.testing import CliRunner

from tistream.admin.core.cost import MONTH_S, Load, Prices, levers, month
from tistream.cli.main import command_line

BIG = Load(stores=100, mb_per_s=100)


def test_one_store_that_flushes_each_second_is_12_96_and_a_hundred_are_1296() -> None:
    assert MONTH_S == 2_592_000
    assert month(Load(stores=1, mb_per_s=0)).of("batch files, PUT").usd == pytest.approx(12.96)
    position = month(BIG).of("batch files, PUT")
    assert position.usd == pytest.approx(1296)
    assert position.requests == pytest.approx(259_200_000)


def test_a_big_cluster() -> None:
    """100 stores, 100 MB/s, 20 tasks: requests 1,776, storage 612, compute 1,229, database 373, KMS 20; 4,011 USD."""
    bill = month(BIG)
    assert round(bill.requests_usd) == 1776
    assert {name: round(bill.of(name).usd) for name in ("storage", "compute", "database", "KMS")} == {
        "storage": 612,
        "compute": 1229,
        "database": 373,
        "KMS": 20,
    }
    assert bill.usd == pytest.approx(4011, abs=1)
    assert month(replace(BIG, cross_az=True)).of("traffic between zones").usd == pytest.approx(1382, abs=1)
    assert month(replace(BIG, kms_calls_share=1.0)).of("KMS").usd == pytest.approx(1867, abs=1)


def test_folders_of_tenants_multiply_the_files_of_a_store() -> None:
    apart, together = Load(stores=30, mb_per_s=1, folders_per_store=1000), Load(stores=30, mb_per_s=1)
    assert month(apart).of("batch files, PUT").usd == pytest.approx(388_800)
    assert month(together).of("batch files, PUT").usd == pytest.approx(388.8)


def test_idle_stores_are_paid_at_their_own_pace() -> None:
    """30 stores of which 24 write nothing: 6 at once a second and 24 each 30 s are 6.8 files a second."""
    load = Load(stores=30, mb_per_s=1, idle_share=0.8, idle_flush_s=30)
    assert month(load).of("batch files, PUT").usd == pytest.approx(6.8 * 12.96)


def test_prices_are_parameters() -> None:
    free = Prices(**dict.fromkeys((field.name for field in fields(Prices)), 0.0) | {"rds_month": 7.0})
    assert month(BIG, free).usd == 7
    assert month(BIG, replace(Prices(), put_per_million=10)).of("batch files, PUT").usd == pytest.approx(2592)


def test_levers_are_compared_with_the_bill_as_it_is() -> None:
    bill, changes = month(BIG).usd, levers(BIG)
    assert [c.saves for c in changes] == sorted((c.saves for c in changes), reverse=True)
    assert all(c.usd + c.saves == pytest.approx(bill) for c in changes)
    saved = {c.name: c.saves for c in changes}
    assert saved["flush each 2 s instead (adds a second of lag)"] > 1296 / 2
    assert "one batch file a store for all tenants" not in saved, "that is how it is"


def test_the_command_prints_the_same() -> None:
    done = CliRunner().invoke(command_line(), ["cost", "--stores", "100", "--mb-per-s", "100", "--json"])
    assert done.exit_code == 0
    printed = json.loads(done.stdout)
    assert printed["usd"] == round(month(BIG).usd, 2)
    assert {p["name"]: p["usd"] for p in printed["positions"]}["batch files, PUT"] == 1296
    shown = CliRunner().invoke(command_line(), ["cost", "--stores", "100", "--put-price", "10"])
    assert "2,592.00" in shown.stdout
    assert CliRunner().invoke(command_line(), ["cost", "--stores", "0"]).exit_code == 2
