"""The tables of a store's database."""

from __future__ import annotations

from artesian.errors import MissingExtra

try:
    import sqlalchemy as sql
except ModuleNotFoundError:
    raise MissingExtra("sqlalchemy", "server") from None

TABLES = sql.MetaData()
ABOUT = sql.Table("about", TABLES, sql.Column("key", sql.Text, primary_key=True), sql.Column("value", sql.Text))
EVENTS = sql.Table(
    "events",
    TABLES,
    sql.Column("number", sql.Integer, primary_key=True, autoincrement=False),
    sql.Column("record", sql.Text, nullable=False),
    sql.Column("chain", sql.Text, nullable=False),
)
SNAPSHOTS = sql.Table(
    "snapshots",
    TABLES,
    sql.Column("events", sql.Integer, primary_key=True, autoincrement=False),  # how many it stands for
    sql.Column("record", sql.Text, nullable=False),
    sql.Column("chain", sql.Text, nullable=False),  # of the last event it stands for
    sql.Column("digest", sql.Text, nullable=False),  # of the record and the chain together
)
STRETCHES = sql.Table(
    "stretches",
    TABLES,
    sql.Column("events", sql.Integer, primary_key=True, autoincrement=False),  # how many came before
    sql.Column("versions", sql.Text, nullable=False),  # of the code that wrote on from there
    sql.Column("chain", sql.Text, nullable=False),
    sql.Column("digest", sql.Text, nullable=False),  # of the versions and the chain together
)
SECRETS = sql.Table(
    "secrets",
    TABLES,
    sql.Column("client", sql.Text, primary_key=True),
    sql.Column("hash", sql.Text, nullable=False),  # of the secret the client made
    sql.Column("digest", sql.Text, nullable=False),  # of the two together
)
ENROLMENTS = sql.Table(
    "enrolments",
    TABLES,
    sql.Column("client", sql.Text, primary_key=True),
    sql.Column("token", sql.Text, nullable=False),  # the name of the token it joined with
    sql.Column("digest", sql.Text, nullable=False),  # of the two together
)
