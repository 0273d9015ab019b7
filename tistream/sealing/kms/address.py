"""Opens the key of an address.

arn:aws:kms:eu-central-1:111122223333:key/...     AWS KMS; also an alias's ARN
alias/name                                        AWS KMS, in the account and region of the process
local:/absolute/file                              a file of 64 hexadecimal digits, on each machine of the service
"""

from __future__ import annotations

import re
from pathlib import Path

from tistream.errors import InvalidInput
from tistream.sealing.kms.aws import AwsKms
from tistream.sealing.kms.local import LocalKms
from tistream.sealing.kms.protocol import Kms

ADDRESS_CHARS_MAX = 2048
_ARN = re.compile(r"arn:aws(?:-[a-z]+)*:kms:(?P<region>[a-z0-9-]{1,32}):\d{12}:(?:key|alias)/[A-Za-z0-9/_:-]{1,256}")
_ALIAS = re.compile(r"alias/[A-Za-z0-9/_-]{1,250}")
_LOCAL = "local:"


def open_kms(address: str, *, endpoint: str | None = None) -> Kms:
    """The key, without a request. InvalidInput when it is none of the forms. `endpoint`: of an AWS KMS, for tests."""
    if address.startswith(_LOCAL):
        path = Path(address.removeprefix(_LOCAL))
        if not path.is_absolute() or "\0" in address:
            raise InvalidInput("a key file is named by its absolute path: local:/folder/file", kms=address[:200])
        return LocalKms(str(path))
    if match := _ARN.fullmatch(address):
        return AwsKms(address, region=match["region"], endpoint=endpoint)
    if _ALIAS.fullmatch(address):
        return AwsKms(address, endpoint=endpoint)
    raise InvalidInput(
        "not the address of a KMS key; known are arn:aws:kms:..., alias/NAME and local:/FILE", kms=address[:200]
    )
