"""Names in any spelling, and suggestions among very many."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from schemas import names
from schemas.history import History
from schemas.model import Database
from schemas.names import folded, similar
from schemas.snapshot import SchemaSnapshot
from tests.kit.schema_models import a_table
from tistream.errors import NotFound


def history(*spelled: str) -> History:
    tables = {n: a_table(id=n, name=name) for n, name in enumerate(spelled, 100)}
    new_history = History(SchemaSnapshot(ts=100, databases={1: Database(id=1, name="d")}, tables=tables), tables[100])
    new_history.advance(1000)
    return new_history


def test_names_that_tidb_keeps_apart_stay_apart() -> None:
    """Go's strings.ToLower changes letter by letter; ΑΣ and ας are two tables, though Python's lower makes them one."""
    spelled = ["ΑΣ", "ας", "K", "ß", "SS", "ﬁ", "a/b", "😀"]
    by_name = history(*spelled)
    for n, name in enumerate(spelled, 100):
        assert by_name.find("d", name, 500).id == n
    assert by_name.find("D", "ασ", 500).id == 100
    assert by_name.find("d", "k", 500).id == 102


def test_one_letter_becomes_one_letter() -> None:
    assert [folded(name) for name in ("Ab", "İX", "ΑΣ", "ÀÉ")] == ["ab", "ix", "ας"[:1] + "σ", "àé"]
    assert all(len(folded(chr(c))) == 1 for c in range(0x110000) if not 0xD800 <= c < 0xE000)


def test_a_suggestion_among_very_many_names_is_cheap() -> None:
    tables = [f"orders_{n:06d}_archive" for n in range(50_000)] + ["customers", "zebra"]
    before = time.process_time()
    assert similar("orders_012345_archiv", tables)[0] == "orders_012345_archive"
    assert similar("ustomers", tables)[0] == "customers"
    assert similar("Customer", tables)[0] == "customers"
    assert time.process_time() - before < 3  # comparing all of them takes tens of seconds


def test_few_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def compared(word: str, near: Sequence[str], n: int) -> list[str]:
        seen.append(len(near))
        return []

    monkeypatch.setattr(names, "get_close_matches", compared)
    with pytest.raises(NotFound):
        history(*(f"t{n}" for n in range(5000))).find("d", "absent", 500)
    assert max(seen) <= 400
    before = len(seen)
    assert history("t").named("d", "absent", 500) is None
    assert len(seen) == before
