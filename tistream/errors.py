"""All errors of TiStream, and how a caller must react to each.

Every error has a `kind` (how to react), a stable `code` that users see, and its facts as attributes. The first line of
the class docstring is the default message. `determinate` of store and catalog errors means that the request certainly
had no effect; after an indeterminate error the caller must read back the state, never undo.

    TiStreamError
      InvalidInput          the request is invalid: fix it
        ConfigError         a setting is unknown or wrong
        CursorInvalid       a cursor of another service or scope
        FilterInvalid       a filter of a pull is wrong
        TsOutOfRange        a timestamp in the future
        TsExpired           a timestamp below what is retained
        TableRenamed        a table that has another name now
        StateNotKnown       the log may lack versions of keys around a timestamp: read as of a nearby one
        SnapshotLost        a snapshot whose rest cannot be read as its beginning was: start it again
        StateForbids        the object's state does not allow it now
        BeyondQuarantine    a timestamp above what is known to be good: an operator decides about a store
        ChangedMeanwhile    the object changed since the caller read it
        ColumnNotStored     a virtual generated column was asked for by name
        TenantDeleted       the tenant was deleted for good
        SeedNeeded          the log alone cannot rebuild these rows
          NotConvertible    because a column was changed since
        Unauthenticated     no valid key
        NotAllowed          a valid key without this permission
        CertificateNeeded   a client without a certificate, where mutual TLS is asked for
        AnotherRequest      an Idempotency-Key that another request has used
      StillInFlight         the first request with this Idempotency-Key is still running: wait
      AheadOfWatermark      a timestamp that is not served yet: wait
      RateLimited           too many requests or bytes: wait as long as the answer says
        TooManyOpen         too many streams or waiting requests at once
      NotFound              tenant, database, table, worker ... does not exist
      CorruptObject         an object's bytes are wrong: fail closed
        DecodeError         a key or row cannot be decoded
      StoreError            the object store
        ObjectNotFound, ObjectConflict, StoreUnavailable
          StoreRefused      the credentials lack a permission or have expired
      CredentialsUnavailable  no credentials for the bucket could be issued
      CatalogUnavailable    the catalog
      Fenced                another process owns this now: drop the state and stop
      FeedGap               an input file is missing: wait, never skip
      NotificationsUnavailable  the queue of notifications: looking continues
      ServiceRefused        another service did not accept the token: read the newest one and try again
      AheadOfTime           a timestamp ahead of the catalog's clock: its object waits
      FeedUnavailable       no dispatcher serves the store right now: find its owner and subscribe again
      UpstreamContractViolated  the upstream sent a change below its own watermark: stop and keep everything
      PromiseContradicted   a store sent commits at or below a resolved ts that it had promised: quarantine the store
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from enum import StrEnum


class ErrorKind(StrEnum):
    """How the caller must react."""

    RETRY = "retry"
    FENCED = "fenced"
    INVALID = "invalid"
    CORRUPT = "corrupt"
    NOT_FOUND = "not_found"
    INTERNAL = "internal"


class TiStreamError(Exception):
    """TiStream failed unexpectedly."""

    kind: ErrorKind = ErrorKind.INTERNAL
    code: str = "TS-1000"
    hint: str = ""

    def __init__(self, message: str = "", **facts: object) -> None:
        self.message = message or (type(self).__doc__ or "").split("\n")[0]
        self.facts = facts
        for name, value in facts.items():
            if name not in _RESERVED:  # a fact never hides the error's own attributes
                setattr(self, name, value)
        super().__init__(self.message)

    def __str__(self) -> str:
        shown = ", ".join(f"{name}={_show(value)}" for name, value in self.facts.items())
        return f"{self.message} ({shown})" if shown else self.message


_RESERVED = frozenset({"kind", "code", "hint", "message", "facts", "args"})


def _show(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


class InvalidInput(TiStreamError):
    """The request cannot be served as it stands."""

    kind = ErrorKind.INVALID
    code = "TS-1001"


class ConfigError(InvalidInput):
    """A setting is unknown or has a wrong value."""

    code = "TS-1002"


class TooLarge(InvalidInput):
    """The request is too large."""

    code = "TS-1008"


class CursorInvalid(InvalidInput):
    """The cursor was not made by this service, or belongs to another scope."""

    code = "TS-1003"
    hint = "Pass back TiStream-Next-Cursor unchanged, to the same path, or start again with start_ts."


class FilterInvalid(InvalidInput):
    """A filter of the pull is not understood, or does not fit the tables.

    The facts name the parameter and the place in its text, counted in characters from 0."""

    code = "TS-1018"
    hint = "docs/filters.md has the grammar of each filter."


class TsOutOfRange(InvalidInput):
    """The timestamp is in the future."""

    code = "TS-1004"
    hint = "Give a timestamp up to now, or start_ts=latest; wait=SECONDS waits for changes."


class TsExpired(InvalidInput):
    """The timestamp is below what is retained."""

    code = "TS-1005"
    hint = "start_ts=earliest starts at the beginning of the log; earlier rows must come from a dump of the source."


class TableRenamed(InvalidInput):
    """The table has another name since."""

    code = "TS-1009"
    hint = "Pull the table by its new name, with start_ts at the timestamp of the rename."


class StateNotKnown(InvalidInput):
    """The log may lack versions of some of these keys around this timestamp: their state at it is not known."""

    code = "TS-1095"
    hint = "Read as of before_ts or after_ts, ask for fewer keys, or take what is known with allow_state=true."


class SnapshotLost(InvalidInput):
    """The rest of the snapshot can no longer be read as its beginning was."""

    code = "TS-1022"
    hint = "Start the snapshot again, with snapshot=true and no cursor, and replace what the first one delivered."


class Unauthenticated(InvalidInput):
    """The request needs a valid API key."""

    code = "TS-1080"
    hint = "Send the header Authorization: Bearer KEY."
    ended: object | None = None  #: the principal of a key that was right until it ended; not for the caller


class NotAllowed(InvalidInput):
    """The API key does not have permission for this."""

    code = "TS-1081"
    hint = "Use a key of a role with this permission (tistream key create). GET /v1/whoami lists a key's permissions."


class CertificateNeeded(InvalidInput):
    """This service answers only clients with a certificate of its authority (mutual TLS)."""

    code = "TS-1097"
    hint = (
        "Name it and its key: the options client-cert and client-key, or TISTREAM_CLIENT_CERT and TISTREAM_CLIENT_KEY."
    )


class KeyLimited(NotAllowed):
    """The API key is limited to some tables, and this shows or changes more than they hold."""

    code = "TS-1092"
    hint = "Use a key without a limit."


class AnotherRequest(InvalidInput):
    """This Idempotency-Key was used for another request."""

    code = "TS-1082"
    hint = "Use a new Idempotency-Key for each request; reuse one only to repeat the same request."


class StillInFlight(TiStreamError):
    """The first request with this Idempotency-Key is still running."""

    kind = ErrorKind.RETRY
    code = "TS-1083"
    hint = "Repeat the request a little later."


class AheadOfWatermark(TiStreamError):
    """The timestamp is above the watermark."""

    kind = ErrorKind.RETRY
    code = "TS-1007"
    hint = "Retry when the watermark has passed it, give wait=SECONDS, or read as_of=latest."


class ServiceRefused(TiStreamError):
    """A service did not accept the token or the certificate of another one."""

    kind = ErrorKind.RETRY
    code = "TS-1086"
    hint = (
        "All services need the same catalog, in which the meta server keeps the token. With [feed] TLS: check the "
        "files and names of both sides."
    )


class NotificationsUnavailable(TiStreamError):
    """The queue with the notifications of the bucket does not answer. New files are found by looking, as without it."""

    kind = ErrorKind.RETRY
    code = "TS-1087"
    hint = "Check notifications.sqs_queue_url, and the right to receive and delete messages."


class RateLimited(TiStreamError):
    """A rate limit of this caller or tenant is exceeded."""

    kind = ErrorKind.RETRY
    code = "TS-1090"
    hint = "Wait for Retry-After seconds; RateLimit and RateLimit-Policy show the remaining quota."


class TooManyOpen(RateLimited):
    """This caller has too many open streams or waiting requests."""

    code = "TS-1091"
    hint = "Close one first; one stream of a database or of the whole tenant replaces many of single tables."


class SeedNeeded(InvalidInput):
    """The log alone cannot rebuild these rows at that timestamp."""

    code = "TS-1011"
    hint = "Add a seed of the table, taken at or before the timestamp, with tistream seed."


class NotConvertible(SeedNeeded):
    """A column's type changed after a row was written, and the row's converted value is unknown."""

    code = "TS-1012"
    hint = (
        "Read as of readable_upto_ts or earlier, as of readable_from_ts or later if it is given, or without the column "
        "(columns=). Or add a seed of the table, taken after the column change, with tistream seed."
    )


class ColumnNotStored(InvalidInput):
    """A virtual generated column has no values in the log: TiDB computes it when it is read."""

    code = "TS-1019"
    hint = "Ask for the columns that the expression names, and compute it from them."


class StateForbids(InvalidInput):
    """The object's current state does not allow this."""

    code = "TS-1014"
    hint = "Check the current state: tistream workers list and tistream tasks list, or GET /v1/workers and /v1/tasks."


class BeyondQuarantine(InvalidInput):
    """A store of the tenant is quarantined, and the timestamp is above the last watermark known to be good."""

    code = "TS-1017"
    hint = (
        "Read up to good_ts. An operator looks (tistream store quarantine list), and rejects the store or connects "
        "another tenant to the cluster."
    )


class ChangedMeanwhile(InvalidInput):
    """The object has changed since you read it (If-Match)."""

    code = "TS-1015"
    hint = "Read it again and send the new ETag."


class TenantDeleted(InvalidInput):
    """The tenant was deleted: it accepts no data, and its log can no longer be read."""

    code = "TS-1016"
    hint = "Ids are never reused: register the cluster or keyspace under a new one."


class NotFound(TiStreamError):
    """Not found."""

    kind = ErrorKind.NOT_FOUND
    code = "TS-1010"


class CorruptObject(TiStreamError):
    """An object is damaged or is not what its key names; nothing of it is used."""

    kind = ErrorKind.CORRUPT
    code = "TS-1020"


class DecodeError(CorruptObject):
    """A key or a row cannot be decoded."""

    code = "TS-1021"


class StoreError(TiStreamError):
    """The object store refused or failed."""

    kind = ErrorKind.RETRY
    code = "TS-1030"


class ObjectNotFound(StoreError):
    """No object has this key."""

    kind = ErrorKind.NOT_FOUND
    code = "TS-1031"


class ObjectConflict(StoreError):
    """Another writer has written this key: it owns the slot."""

    kind = ErrorKind.FENCED
    code = "TS-1032"


class StoreUnavailable(StoreError):
    """The object store did not answer."""

    code = "TS-1033"


class StoreRefused(StoreUnavailable):
    """The object store denied access: the credentials lack a permission or have expired."""

    code = "TS-1039"
    hint = (
        "Own credentials (AWS_*): check their permissions. Session credentials of a pusher: check the policy of "
        "push.role_arn, and set push.kms_key_arn if the bucket encrypts with a key."
    )


class CredentialsUnavailable(TiStreamError):
    """Session credentials for a tenant's prefix of the bucket could not be issued."""

    kind = ErrorKind.RETRY
    code = "TS-1041"
    hint = "The service must be allowed to assume push.role_arn; its log has the answer of STS."


class CatalogUnavailable(TiStreamError):
    """The catalog did not answer."""

    kind = ErrorKind.RETRY
    code = "TS-1040"
    determinate: bool = True  #: the transaction certainly did not happen


class SparkEnded(TiStreamError):
    """The Spark session has ended, does not answer, or gets no executor from its cluster."""

    code = "TS-1051"
    hint = "A supervisor starts an ended process again, see Spark's log; else look for free cores at Spark's master."


class Fenced(TiStreamError):
    """Another process owns this now. Drop its in-memory state and stop."""

    kind = ErrorKind.FENCED
    code = "TS-1050"


class FeedGap(TiStreamError):
    """An input file is missing while a later one exists. The store waits for it; nothing is skipped."""

    kind = ErrorKind.RETRY
    code = "TS-1060"


class AheadOfTime(TiStreamError):
    """A timestamp is ahead of the catalog's clock. Its object waits until that time, and nothing is skipped."""

    kind = ErrorKind.RETRY
    code = "TS-1067"
    hint = (
        "Compare the clocks of the upstream's PD and of the catalog's database. When the upstream's is right again, "
        "restart the pusher: its new incarnation sends the changes again and the waiting files are dropped."
    )
    ts: int


class FeedUnavailable(TiStreamError):
    """No dispatcher serves this store right now, or another one does. Find its owner and subscribe again."""

    kind = ErrorKind.RETRY
    code = "TS-1062"


class WatermarkStalled(TiStreamError):
    """A task's watermark is stalled; the message names the region, store and file that it waits for."""

    kind = ErrorKind.RETRY
    code = "TS-1063"


class TaskStopped(TiStreamError):
    """A task has stopped and needs an operator; the message gives the reason."""

    kind = ErrorKind.CORRUPT
    code = "TS-1064"
    hint = "Fix the cause named in the message, then run tistream tasks retry."


class MergeWaits(TiStreamError):
    """Two tasks to be merged have not reached the same position. Both continue; the merge is retried."""

    kind = ErrorKind.RETRY
    code = "TS-1066"
    hint = (
        "The merge completes once both tasks are written up to one timestamp; check the two tasks for other problems."
    )


class LogHeld(TiStreamError):
    """A consumer, a changefeed, a safe point or a table keeps the log beyond its retention; the message names it."""

    kind = ErrorKind.RETRY
    code = "TS-1076"
    hint = "tistream tenant retention names every hold and what releases it; tistream compact builds a table's base."


class BucketDiffers(TiStreamError):
    """Catalog and bucket differ: an object of the catalog is missing in the bucket or has another size."""

    kind = ErrorKind.CORRUPT
    code = "TS-1077"
    hint = "tistream audit lists every such object."


class UpstreamContractViolated(TiStreamError):
    """The upstream sent a change at or below a watermark that it had already promised. The task stops."""

    kind = ErrorKind.CORRUPT
    code = "TS-1061"


class PromiseContradicted(TiStreamError):
    """A store sent commits at or below a resolved ts that it had promised. It is quarantined and its files are kept."""

    kind = ErrorKind.CORRUPT
    code = "TS-1068"
    found: object = None  #: the rows, as the sorter's core describes them
    hint = (
        "Pulls of the tenant end at good_ts until an operator decides. tistream store quarantine list shows the rows. "
        "If they are not in the cluster: tistream store quarantine reject. If they are, connect another tenant to the "
        "cluster and delete this one: docs/runbooks/stopped.md."
    )


def invariant(condition: bool, message: str, **facts: object) -> None:
    """Raise when a relation that must hold does not. Survives `python -O`, unlike `assert`."""
    if not condition:
        raise TiStreamError(f"invariant violated: {message}", **facts)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown word: the nearest known ones, or all of them."""
    names = sorted(known)
    near = {name.replace("_", "-"): name for name in names}
    close = [near[name] for name in difflib.get_close_matches(word.lower().replace("_", "-"), near, n=2, cutoff=0.6)]
    return f". Did you mean {' or '.join(close)}?" if close else f". Known: {', '.join(names)}."
