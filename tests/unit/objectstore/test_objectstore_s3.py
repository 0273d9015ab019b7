"""What errors of obstore mean."""

from __future__ import annotations

import inspect

import obstore.exceptions
import pytest

from tistream.errors import ConfigError, InvalidInput, ObjectNotFound, StoreRefused, StoreUnavailable, TiStreamError
from tistream.objectstore.s3 import map_error

#: class -> (what a get raises, what a put raises, whether a put is known not to have happened)
MEANING: dict[str, tuple[type[TiStreamError], type[TiStreamError], bool | None]] = {
    "BaseError": (StoreUnavailable, StoreUnavailable, False),
    "GenericError": (StoreUnavailable, StoreUnavailable, False),
    "JoinError": (StoreUnavailable, StoreUnavailable, False),
    "AlreadyExistsError": (StoreUnavailable, StoreUnavailable, False),
    "PermissionDeniedError": (StoreRefused, StoreRefused, True),
    "UnauthenticatedError": (StoreRefused, StoreRefused, True),
    "PreconditionError": (StoreUnavailable, StoreUnavailable, True),
    "NotModifiedError": (StoreUnavailable, StoreUnavailable, True),
    "NotFoundError": (ObjectNotFound, StoreUnavailable, True),
    "InvalidPathError": (InvalidInput, InvalidInput, None),
    "NotSupportedError": (ConfigError, ConfigError, None),
    "UnknownConfigurationKeyError": (ConfigError, ConfigError, None),
}


@pytest.mark.parametrize(
    "error_class", [c for _, c in inspect.getmembers(obstore.exceptions, inspect.isclass)], ids=lambda c: c.__name__
)
def test_every_error_class_of_obstore_is_mapped(error_class: type[Exception]) -> None:
    of_get, of_put, determinate = MEANING[error_class.__name__]
    get_error = map_error(error_class("what happened\nDebug source: long"), "a/b")
    put = map_error(error_class("what happened\nDebug source: long"), "a/b", putting=True)
    assert (type(get_error), type(put)) == (of_get, of_put)
    assert put.facts.get("determinate") is determinate
    assert get_error.facts["key"] == put.facts["key"] == "a/b"
    assert "Debug" not in str(get_error) + str(put)


@pytest.mark.parametrize(
    ("error", "meaning"),
    [(FileNotFoundError("NoSuchKey"), ObjectNotFound), (FileNotFoundError("NoSuchBucket"), StoreUnavailable)],
)
def test_a_missing_bucket_is_not_a_missing_object(error: Exception, meaning: type[TiStreamError]) -> None:
    assert type(map_error(error, "a/b")) is meaning


@pytest.mark.parametrize("code", ["ExpiredToken", "InvalidToken", "AccessDenied"])
def test_credentials_that_count_no_more_are_a_refusal_whatever_the_status(code: str) -> None:
    said = f"Server returned non-2xx status code: 400 Bad Request: <?xml?>\n<Error><Code>{code}</Code></Error>"
    refusal = map_error(obstore.exceptions.GenericError(said), "a/b", putting=True)
    assert (type(refusal), refusal.facts["determinate"]) == (StoreRefused, True)
    assert str(refusal).startswith(f"the store refused: {code} ")
