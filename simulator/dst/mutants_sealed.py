"""Mutants of sealing: what is sealed, what a refused key means, and how long a root is open."""

from __future__ import annotations

from simulator.dst.mutants import broken

_PUT = "tistream.sealing.store:SealedStore.put"
_SEALED = "sealed = seal_own(content, self._roots.root(tenant, current.root_no), tenant, current, key)"

broken(
    "plain-without-a-key (sealed): what cannot be sealed is written as it is",
    (
        _PUT,
        _SEALED,
        f"try: {_SEALED}\n    except Exception: return self._inner.put(key, data)",
    ),
)
broken(
    "refusal-is-damage (sealed): an object whose key is refused is taken for a damaged one",
    (
        "tistream.sealing.store:SealedStore.get",
        "content = SealedReader(head, tenant, key).whole(data, self._roots.root)",
        "try: content = SealedReader(head, tenant, key).whole(data, self._roots.root)\n"
        "    except Exception as e: raise CorruptObject('the key does not fit', object=key) from e",
    ),
)
broken(
    "minute-from-the-answer (sealed): an opened root lives from when the KMS has answered",
    (
        "tistream.sealing.core.lifetimes:RootLife.grant",
        "self.granted_s, self.asked_s = self.asked_s, None",
        "self.granted_s, self.asked_s = (self.asked_s or 0) + 0.2, None",
    ),
)
broken(
    "root-never-expires (sealed): an opened root is used until the KMS refuses it",
    (
        "tistream.sealing.core.lifetimes:RootLife.is_open",
        "self.granted_s is not None and now_s - self.granted_s < ROOT_LIFE_S",
        "self.granted_s is not None",
    ),
)
