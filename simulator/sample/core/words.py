"""Names, places and goods of the shop."""

from __future__ import annotations

from decimal import Decimal

FIRST_NAMES = (
    "Alice", "Amir", "Ana", "Ben", "Chen", "Clara", "David", "Elena", "Emma", "Farid", "Grace", "Hana", "Hugo", "Ines",
    "Ivan", "Jonas", "Julia", "Kofi", "Lena", "Leo", "Maria", "Mateo", "Mei", "Nadia", "Noah", "Olga", "Omar", "Paula",
    "Priya", "Rosa", "Sam", "Sofia", "Tomas", "Vera", "Yuki", "Zoe",
)  # fmt: skip
LAST_NAMES = (
    "Almeida", "Andersen", "Bauer", "Costa", "Dubois", "Evans", "Fischer", "Garcia", "Haddad", "Ito", "Jansen", "Kim",
    "Kowalski", "Larsen", "Lopez", "Martin", "Mensah", "Moreau", "Nguyen", "Novak", "Olsen", "Patel", "Petrov", "Rossi",
    "Santos", "Schmidt", "Silva", "Tanaka", "Walker", "Wang", "Weber", "Young",
)  # fmt: skip
CITIES = (
    "Amsterdam", "Athens", "Berlin", "Boston", "Dublin", "Hamburg", "Lisbon", "London", "Lyon", "Madrid", "Milan",
    "Montreal", "Oslo", "Paris", "Porto", "Prague", "Seattle", "Seoul", "Singapore", "Tokyo", "Toronto", "Vienna",
    "Warsaw", "Zurich",
)  # fmt: skip
GOODS = tuple(
    (name, Decimal(price))
    for name, price in (
        ("Coffee beans, 1 kg", "18.90"),
        ("Espresso cup", "9.50"),
        ("French press", "34.00"),
        ("Hand grinder", "79.00"),
        ("Kettle, 1.2 l", "64.90"),
        ("Milk jug", "15.75"),
        ("Paper filters, 100", "4.20"),
        ("Pour-over set", "42.50"),
        ("Scale, 0.1 g", "29.99"),
        ("Tea, Assam, 250 g", "11.40"),
        ("Tea, Sencha, 100 g", "13.80"),
        ("Teapot, cast iron", "58.00"),
        ("Thermos, 0.5 l", "27.30"),
        ("Tumbler", "21.00"),
    )
)
CAMPAIGNS = ("Spring sale", "Newsletter", "Friends", "Autumn sale")
