"""The tree of errors, and what a caller must do about each.

Every error carries a `kind` (what to do), a `code` (stable, shown to users) and its facts as attributes. The class
docstring is the default message. Store and catalog errors also say whether the request is known not to have happened
(`determinate`); an indeterminate one must be read back, never undone.

    TiStreamError
      InvalidInput          the caller asked for something that cannot be: fix the request
        ConfigError         a setting is unknown or wrong
        CursorInvalid       a cursor that this service never made
        TsOutOfRange        a timestamp in the future
        TsExpired           a timestamp below what is retained
        StateForbids        not in this state, now
        ChangedMeanwhile    it is not as it was when the caller looked
        TenantDeleted       it was there and is given up for good
        SeedNeeded          a table as it was: the log alone does not say it
          NotConvertible    and why: a column was changed since
        Unauthenticated     no valid key
        NotAllowed          a valid key that may not do this
        AnotherRequest      an Idempotency-Key that was used for something else
      StillInFlight         the first request with this Idempotency-Key is not answered yet: wait
      AheadOfWatermark      a timestamp that is not served yet: wait
      RateLimited           more requests or bytes than agreed: wait, the answer says how long
        TooManyOpen         more streams or waiting requests at once than agreed
      NotFound              tenant, database, table, worker ... does not exist
      CorruptObject         bytes that are not what their name promises: fail closed
        DecodeError         one key or row that cannot be decoded
      StoreError            the object store
        ObjectNotFound, ObjectConflict, StoreUnavailable
          StoreRefused      the credentials may not do this, or count no more
      CredentialsUnavailable  who issues credentials for the bucket does not
      CatalogUnavailable    the catalog
      Fenced                somebody else owns this now: drop the state and stop
      FeedGap               an input file is missing: wait, never skip
      FeedUnavailable       no dispatcher serves the store right now: find its owner and subscribe again
      UpstreamContractViolated  the upstream sent a change below its own watermark: stop and keep everything
"""

from __future__ import annotations

from enum import StrEnum


class ErrorKind(StrEnum):
    """What the caller must do."""

    RETRY = "retry"
    FENCED = "fenced"
    INVALID = "invalid"
    CORRUPT = "corrupt"
    NOT_FOUND = "not_found"
    INTERNAL = "internal"


class TiStreamError(Exception):
    """TiStream failed in a way it did not expect."""

    kind: ErrorKind = ErrorKind.INTERNAL
    code: str = "TS-1000"
    hint: str = ""

    def __init__(self, message: str = "", **facts: object) -> None:
        self.message = message or (type(self).__doc__ or "").split("\n")[0]
        self.facts = facts
        for name, value in facts.items():
            if name not in _OWN:  # a fact never hides what the error itself is
                setattr(self, name, value)
        super().__init__(self.message)

    def __str__(self) -> str:
        shown = ", ".join(f"{name}={_show(value)}" for name, value in self.facts.items())
        return f"{self.message} ({shown})" if shown else self.message


_OWN = frozenset({"kind", "code", "hint", "message", "facts", "args"})


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
    """The request carries more than it may."""

    code = "TS-1008"


class CursorInvalid(InvalidInput):
    """The cursor was not made by this service, or belongs to another scope."""

    code = "TS-1003"
    hint = "Pass back TiStream-Next-Cursor unchanged, to the same path, or start again with start_ts."


class TsOutOfRange(InvalidInput):
    """The timestamp lies in the future."""

    code = "TS-1004"
    hint = "Give a timestamp up to now, or start_ts=latest; with wait=SECONDS the answer comes when there is news."


class TsExpired(InvalidInput):
    """The timestamp lies below what is retained."""

    code = "TS-1005"
    hint = "start_ts=earliest begins where the log begins; what lies before it must come from a dump of the source."


class Unauthenticated(InvalidInput):
    """The request needs a valid API key."""

    code = "TS-1080"
    hint = "Send Authorization: Bearer KEY. The tistream command takes TISTREAM_KEY, --key or what tistream login kept."


class NotAllowed(InvalidInput):
    """The API key is valid and may not do this."""

    code = "TS-1081"
    hint = "Use a key of a role that may: tistream key create makes one. GET /v1/whoami tells what a key may do."


class AnotherRequest(InvalidInput):
    """This Idempotency-Key was used for another request."""

    code = "TS-1082"
    hint = "Use a new Idempotency-Key for each new request, and the old one only to send the same request again."


class StillInFlight(TiStreamError):
    """The first request with this Idempotency-Key is not answered yet."""

    kind = ErrorKind.RETRY
    code = "TS-1083"
    hint = "Send the same request again a little later."


class AheadOfWatermark(TiStreamError):
    """The timestamp lies above what is served yet."""

    kind = ErrorKind.RETRY
    code = "TS-1007"
    hint = "Ask again when the watermark has passed it, give wait=SECONDS, or read as_of=latest."


class RateLimited(TiStreamError):
    """More was asked for than this caller or tenant may have."""

    kind = ErrorKind.RETRY
    code = "TS-1090"
    hint = "Wait for as long as Retry-After says; RateLimit and RateLimit-Policy show what is left."


class TooManyOpen(RateLimited):
    """This caller has as many streams or waiting requests open as it may have."""

    code = "TS-1091"
    hint = "Close one first; a stream of a database or of the whole tenant takes the place of many of single tables."


class SeedNeeded(InvalidInput):
    """The log alone does not say what these rows were at that timestamp."""

    code = "TS-1011"
    hint = "Add a seed of the table, taken at or before the timestamp, with tistream seed."


class NotConvertible(SeedNeeded):
    """A column's type was changed since a row was written, and what became of the row's value is not certain."""

    code = "TS-1012"
    hint = "Add a seed of the table, taken after its column was changed, with tistream seed."


class StateForbids(InvalidInput):
    """The state of what was asked for does not allow this now."""

    code = "TS-1014"
    hint = "Look at it again: GET /v1/workers and GET /v1/tasks, or tistream workers list and tistream tasks list."


class ChangedMeanwhile(InvalidInput):
    """What was to be changed is not as it was when you looked at it (If-Match)."""

    code = "TS-1015"
    hint = "Look at it again, and send the new ETag."


class TenantDeleted(InvalidInput):
    """The tenant was deleted: nothing is taken in for it, and its log cannot be read any more."""

    code = "TS-1016"
    hint = "Its id is not used again: register the cluster or keyspace under another one."


class NotFound(TiStreamError):
    """There is no such thing."""

    kind = ErrorKind.NOT_FOUND
    code = "TS-1010"


class CorruptObject(TiStreamError):
    """An object is not what its name promises; nothing of it is used."""

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
    """There is no object under this key."""

    kind = ErrorKind.NOT_FOUND
    code = "TS-1031"


class ObjectConflict(StoreError):
    """Another writer's bytes are under this key: somebody else owns the slot."""

    kind = ErrorKind.FENCED
    code = "TS-1032"


class StoreUnavailable(StoreError):
    """The object store did not answer."""

    code = "TS-1033"


class StoreRefused(StoreUnavailable):
    """The object store does not let these credentials do this, or they count no more."""

    code = "TS-1039"
    hint = (
        "Own credentials (AWS_*): may they? Session credentials of a pusher: is the policy of push.role_arn wide "
        "enough, and push.kms_key_arn set where the bucket encrypts with a key?"
    )


class CredentialsUnavailable(TiStreamError):
    """Session credentials for a tenant's prefix of the bucket could not be issued."""

    kind = ErrorKind.RETRY
    code = "TS-1041"
    hint = "The service must be allowed to take the role of push.role_arn; its log has what STS said."


class CatalogUnavailable(TiStreamError):
    """The catalog did not answer; `determinate` says whether the transaction is known not to have happened."""

    kind = ErrorKind.RETRY
    code = "TS-1040"
    determinate: bool = True


class Fenced(TiStreamError):
    """Another worker owns this now. Drop its in-memory state and stop."""

    kind = ErrorKind.FENCED
    code = "TS-1050"


class FeedGap(TiStreamError):
    """An input file is missing while a later one exists. Nothing is skipped; the store waits for it."""

    kind = ErrorKind.RETRY
    code = "TS-1060"


class FeedUnavailable(TiStreamError):
    """No dispatcher serves this store right now, or another one does. Find its owner and subscribe again."""

    kind = ErrorKind.RETRY
    code = "TS-1062"


class WatermarkStalled(TiStreamError):
    """A task's watermark is stalled; the message names the region, store and file that it waits for."""

    kind = ErrorKind.RETRY
    code = "TS-1063"


class TaskStopped(TiStreamError):
    """A task has stopped and waits for an operator; the message says why."""

    kind = ErrorKind.CORRUPT
    code = "TS-1064"
    hint = "Mend what the message names, then: tistream tasks retry."


class MergeWaits(TiStreamError):
    """Two tasks to be merged have not reached the same position. Both continue; the merge is retried."""

    kind = ErrorKind.RETRY
    code = "TS-1066"
    hint = (
        "The merge completes once both tasks are written up to one timestamp; check the two tasks for other problems."
    )


class LogHeld(TiStreamError):
    """A changefeed, a safe point or a table keeps the log longer than its retention; the message says which."""

    kind = ErrorKind.RETRY
    code = "TS-1076"
    hint = "Move or remove the changefeed or safe point; of a table, run tistream compact, which builds its base."


class BucketDiffers(TiStreamError):
    """Catalog and bucket differ: an object that is said to be there is not, or has another size."""

    kind = ErrorKind.CORRUPT
    code = "TS-1077"
    hint = "tistream audit names every object."


class UpstreamContractViolated(TiStreamError):
    """The upstream sent a change at or below a watermark that it had already promised. The task stops."""

    kind = ErrorKind.CORRUPT
    code = "TS-1061"


def invariant(condition: bool, message: str, **facts: object) -> None:
    """Raise when a relation that must hold does not. Survives `python -O`, unlike `assert`."""
    if not condition:
        raise TiStreamError(f"invariant violated: {message}", **facts)
