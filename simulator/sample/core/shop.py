"""What happens in the shop, one transaction a step.

    Shop(seed).step(n, now)     the writes of step n; the shop's rows are then as they are after it

An order goes cart -> new -> paid -> shipped -> delivered; a new or paid one may be cancelled, a cart may be deleted
with its lines. Once there are ORDERS_MAX orders, the oldest one that is over is deleted with its lines and payments.

Relations: an order has a customer, a line and a payment have an order; `total` is the sum of the lines; what a step
does depends on the seed, its number, the rows and the last ids only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from simulator.sample.core.dice import Dice
from simulator.sample.core.tables import (
    CUSTOMERS,
    METHODS,
    ORDER_LINES,
    ORDERS,
    PAYMENTS,
    TABLES,
    Schema,
)
from simulator.sample.core.words import CAMPAIGNS, CITIES, FIRST_NAMES, GOODS, LAST_NAMES

Row = dict[str, Any]

CUSTOMERS_MAX, ORDERS_MAX = 250, 400
_CUSTOMERS_FIRST = 8  # before anyone opens a cart
_WEIGHTS = (
    ("sign_up", 8),
    ("open_cart", 16),
    ("add_line", 10),
    ("abandon", 3),
    ("place", 14),
    ("pay", 13),
    ("ship", 12),
    ("deliver", 12),
    ("cancel", 2),
    ("move", 2),
)


@dataclass(frozen=True, slots=True)
class Write:
    """A changed row; None: it does not exist before, or after."""

    table_id: int
    row_id: int
    old: Row | None
    new: Row | None


class Shop:
    """The shop after some steps. `rows`: table -> id -> row, in the order of the ids."""

    def __init__(self, seed: int, schema: Schema) -> None:
        self._seed, self._schema = seed, schema
        self.rows: dict[int, dict[int, Row]] = {table_id: {} for table_id in TABLES}
        self.last_ids: dict[int, int] = dict.fromkeys(TABLES, 0)
        self._writes: list[Write] = []

    def step(self, n: int, now: datetime) -> list[Write]:
        """The writes of one transaction, at least one."""
        self._writes = []
        dice = Dice(self._seed, n)
        if len(self.rows[CUSTOMERS]) < _CUSTOMERS_FIRST:
            self._sign_up(dice, now)
        elif len(self.rows[ORDERS]) > ORDERS_MAX and (old := self._orders("delivered", "cancelled")):
            self._remove(old[0])
        else:
            action: Callable[[Dice, datetime], None] = getattr(self, f"_{dice.weighted(_WEIGHTS)}")
            action(dice, now)
            if not self._writes:  # there is no such order
                self._open_cart(dice, now)
        return self._writes

    def drop_column(self, table_id: int, name: str) -> None:
        """The rows lose a column."""
        rows = self.rows[table_id]
        for row_id, row in rows.items():
            rows[row_id] = {column: value for column, value in row.items() if column != name}

    # -- what may happen -------------------------------------------------------------------------------------------

    def _sign_up(self, dice: Dice, now: datetime) -> None:
        if len(self.rows[CUSTOMERS]) >= CUSTOMERS_MAX:
            return self._move(dice, now)
        first, last = dice.one_of(FIRST_NAMES), dice.one_of(LAST_NAMES)
        row = {
            "name": f"{first} {last}",
            "email": f"{first}.{last}{self.last_ids[CUSTOMERS] + 1}@example.com".lower(),
            "city": dice.one_of(CITIES),
            "joined_at": now.replace(microsecond=0),
        }
        if "phone" in self._schema.names(CUSTOMERS):
            row["phone"] = f"+1 555 01{dice.below(100):02d}"
        self._insert(CUSTOMERS, row)
        return None

    def _move(self, dice: Dice, now: datetime) -> None:
        self._update(CUSTOMERS, dice.one_of(list(self.rows[CUSTOMERS])), city=dice.one_of(CITIES))

    def _open_cart(self, dice: Dice, now: datetime) -> None:
        row: Row = {"customer_id": dice.one_of(list(self.rows[CUSTOMERS])), "state": "cart", "total": Decimal("0.00")}
        row |= {"placed_at": None, "changed_at": now}
        if self._schema.has_campaign() and dice.below(3) == 0:
            row["campaign"] = dice.one_of(CAMPAIGNS)
        lines = [_line(dice) for _ in range(1 + dice.below(3))]
        row["total"] = sum((line["quantity"] * line["price"] for line in lines), Decimal("0.00"))
        order_id = self._insert(ORDERS, row)
        for line in lines:
            self._insert(ORDER_LINES, {"order_id": order_id, **line})

    def _add_line(self, dice: Dice, now: datetime) -> None:
        if carts := self._orders("cart"):
            order_id, line = dice.one_of(carts), _line(dice)
            self._insert(ORDER_LINES, {"order_id": order_id, **line})
            total = self.rows[ORDERS][order_id]["total"] + line["quantity"] * line["price"]
            self._update(ORDERS, order_id, total=total, changed_at=now)

    def _abandon(self, dice: Dice, now: datetime) -> None:
        if carts := self._orders("cart"):
            self._remove(dice.one_of(carts))

    def _place(self, dice: Dice, now: datetime) -> None:
        if carts := self._orders("cart"):
            order_id = dice.one_of(carts)
            self._update(ORDERS, order_id, state="new", placed_at=now.replace(microsecond=0), changed_at=now)

    def _pay(self, dice: Dice, now: datetime) -> None:
        if placed := self._orders("new"):
            order_id = dice.one_of(placed)
            amount = self.rows[ORDERS][order_id]["total"]
            self._update(ORDERS, order_id, state="paid", changed_at=now)
            self._insert(
                PAYMENTS, {"order_id": order_id, "method": dice.one_of(METHODS), "amount": amount, "paid_at": now}
            )

    def _ship(self, dice: Dice, now: datetime) -> None:
        self._goes_on(dice, now, "paid", "shipped")

    def _deliver(self, dice: Dice, now: datetime) -> None:
        self._goes_on(dice, now, "shipped", "delivered")

    def _cancel(self, dice: Dice, now: datetime) -> None:
        if orders := self._orders("new", "paid"):
            self._update(ORDERS, dice.one_of(orders), state="cancelled", changed_at=now)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _goes_on(self, dice: Dice, now: datetime, state: str, following: str) -> None:
        if orders := self._orders(state):
            self._update(ORDERS, dice.one_of(orders), state=following, changed_at=now)

    def _orders(self, *states: str) -> list[int]:
        return [order_id for order_id, row in self.rows[ORDERS].items() if row["state"] in states]

    def _of_order(self, table_id: int, order_id: int) -> Iterator[int]:
        return (row_id for row_id, row in self.rows[table_id].items() if row["order_id"] == order_id)

    def _remove(self, order_id: int) -> None:
        for table_id in (ORDER_LINES, PAYMENTS):
            for row_id in list(self._of_order(table_id, order_id)):
                self._delete(table_id, row_id)
        self._delete(ORDERS, order_id)

    def _insert(self, table_id: int, row: Row) -> int:
        self.last_ids[table_id] += 1
        row_id = self.last_ids[table_id]
        row = self._whole(table_id, {"id": row_id, **row})
        self.rows[table_id][row_id] = row
        self._writes.append(Write(table_id, row_id, None, row))
        return row_id

    def _update(self, table_id: int, row_id: int, **changed: object) -> None:
        old = self.rows[table_id][row_id]
        row = self.rows[table_id][row_id] = self._whole(table_id, old | changed)
        self._writes.append(Write(table_id, row_id, old, row))

    def _whole(self, table_id: int, row: Row) -> Row:
        """The row as it is written: with every column of now. Rows of before keep to those of then."""
        return {name: row.get(name) for name in self._schema.names(table_id)}

    def _delete(self, table_id: int, row_id: int) -> None:
        self._writes.append(Write(table_id, row_id, self.rows[table_id].pop(row_id), None))


def _line(dice: Dice) -> Row:
    product, price = dice.one_of(GOODS)
    return {"product": product, "quantity": 1 + dice.below(3), "price": price}
