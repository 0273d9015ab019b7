"""Mutants of sealing: what is sealed, and what a refused key means."""

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
        "content = open_object(data, self._roots.root, tenant, key)",
        "try: content = open_object(data, self._roots.root, tenant, key)\n"
        "    except Exception as e: raise CorruptObject('the key does not fit', object=key) from e",
    ),
)
