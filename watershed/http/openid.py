"""Users of an OpenID provider: their tokens are checked with the provider's public keys.

The keys are found by discovery and kept. A token with a key that is not known lets them be read again, at most every
COOLDOWN_S seconds, so that keys may rotate and made-up tokens cost nothing. While the provider does not answer, known
keys go on working for a day; other tokens of it get 503.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import structlog

from cdc.config.http_settings import HttpOidc, Role, is_trusted_url
from cdc.model.errors import ConfigError, UnreachableError, WatershedError
from watershed.http.bounded_work import BoundedWork
from watershed.http.json_fetch import FETCH_S_MAX, fetch_json

log = structlog.get_logger(__name__)

KEYS_S: Final = 3600.0  # after that keys are read again
KEYS_S_MAX: Final = 86_400.0  # for so long they count if they can't be
COOLDOWN_S: Final = 10.0  # between two attempts
LEEWAY_S: Final = 60  # of the clocks
TOKEN_CHARS_MAX: Final = 16_384
NAME_CHARS_MAX: Final = 200
WAITING_MAX: Final = 50
# Asymmetric ones only: with others whoever knows the public key could make a token.
ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
_KINDS: Final = frozenset({"RSA", "EC", "OKP"})
_NEXT: Final = "check that this machine reaches http.oidc.issuer; tokens of http.users are accepted meanwhile"

Fetch = Callable[[str], Any]
"""Returns the JSON at an address. Raises UnreachableError."""


class RefusedTokenError(WatershedError):
    """A token is not accepted."""


class NoRoleError(WatershedError):
    """A token is accepted, but its user has no role here."""

    def __init__(self, user: str, message: str, hint: str) -> None:
        super().__init__(message, hint)
        self.user = user


class OpenId:
    """Checks tokens of one provider. Used by the server's event loop."""

    def __init__(
        self, settings: HttpOidc, clock: Callable[[], float] = time.monotonic, fetch: Fetch | None = None
    ) -> None:
        """Raises ConfigError if the library is not installed."""
        try:
            from joserfc import jwk, jws, jwt
            from joserfc.errors import JoseError
        except ImportError as error:
            raise ConfigError("http.oidc needs the package joserfc", "pip install 'watershed-cdc[oidc]'") from error
        self._jwk, self._jws, self._jwt, self._error = jwk, jws, jwt, JoseError
        self._settings = settings
        self._clock = clock
        self._fetch = fetch or (lambda url: fetch_json(url, _NEXT))
        self._keys: dict[str | None, Any] = {}  # by `kid`
        self._read_at = self._tried_at = float("-inf")
        self._failure: WatershedError | None = None  # of the last attempt
        self._reading = asyncio.Lock()
        self._work = BoundedWork("reading the keys of http.oidc.issuer", 1, 3 * FETCH_S_MAX, WAITING_MAX)

    async def user(self, token: str) -> tuple[str, Role]:
        """Returns name and role (read, operate) of the token's user. Raises RefusedTokenError, NoRoleError, and
        UnreachableError if the provider's keys are not known and can't be read."""
        try:
            if len(token) > TOKEN_CHARS_MAX:
                raise RefusedTokenError("the token is refused: it is too long", "use another token")
            header = self._jws.extract_compact(token.encode()).headers()
            key = await self._key_of(header)
            decoded = self._jwt.decode(token, key, algorithms=list(ALGORITHMS))
            self._jwt.JWTClaimsRegistry(
                leeway=LEEWAY_S,
                iss={"essential": True, "value": self._settings.issuer},
                aud={"essential": True, "values": [self._settings.audience]},
                exp={"essential": True},
                sub={"essential": True},
            ).validate(decoded.claims)
        except (self._error, ValueError, TypeError) as error:
            why = str(error).rstrip(".") or type(error).__name__
            raise RefusedTokenError(f"the token is refused: {why}", "log in again, or use another token") from error
        return self._named(decoded.claims)

    async def _key_of(self, header: Mapping[str, Any]) -> Any:
        """Returns the key of the token's header."""
        if header.get("alg") not in ALGORITHMS:
            hint = f"let the provider sign by one of {', '.join(ALGORITHMS)}"
            raise RefusedTokenError(f"the token is refused: algorithm {str(header.get('alg'))[:20]!r}", hint)
        kid = header.get("kid")
        age_s = self._clock() - self._read_at
        is_asked = self._reading.locked() and age_s <= KEYS_S_MAX  # another request does that, and may wait for long
        if self._found(kid) is None or (age_s > KEYS_S and not is_asked):
            await self._read_again(kid)
        if (key := self._found(kid)) is None:
            raise RefusedTokenError("the token is refused: no key of the issuer has made it", "log in again")
        return key

    def _found(self, kid: Any) -> Any:
        if kid is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(kid) if isinstance(kid, str) else None

    async def _read_again(self, kid: Any) -> None:
        """Reads the keys, unless that was tried a moment ago. Raises UnreachableError if the key is not known, and they
        can't be read."""
        async with self._reading:
            if self._clock() - self._tried_at >= COOLDOWN_S:
                try:
                    self._keys = await self._work.run(self._read)
                    self._read_at, self._failure = self._clock(), None
                except WatershedError as error:
                    self._failure = error
                    log.warning("the keys of http.oidc.issuer can't be read", error=error.message)
                finally:  # not before: each of the waiting requests would try a provider again that does not answer
                    self._tried_at = self._clock()
            is_known = self._found(kid) is not None and self._clock() - self._read_at <= KEYS_S_MAX
            if self._failure is not None and not is_known:
                raise self._failure

    def _read(self) -> dict[str | None, Any]:
        issuer = self._settings.issuer
        found = self._fetch(f"{issuer.rstrip('/')}/.well-known/openid-configuration")
        place = found.get("jwks_uri") if isinstance(found, dict) else None
        if not isinstance(place, str) or found.get("issuer") != issuer or not is_trusted_url(place):
            raise UnreachableError(
                f"{issuer} does not describe itself: its document has another issuer, or no jwks_uri with https",
                "correct http.oidc.issuer: it is exactly what the document says",
            )
        listed = self._fetch(place)
        entries = listed.get("keys") if isinstance(listed, dict) else None
        keys: dict[str | None, Any] = {}
        for entry in entries if isinstance(entries, list) else ():
            if not isinstance(entry, dict) or entry.get("kty") not in _KINDS or entry.get("use", "sig") != "sig":
                continue
            try:
                keys[entry.get("kid")] = self._jwk.import_key(entry)
            except (self._error, ValueError, TypeError, KeyError) as error:  # of a kind that is not known here
                log.warning("a key of http.oidc.issuer can't be used", kid=entry.get("kid"), error=str(error))
        if not keys:
            raise UnreachableError(f"{place} has no key that can be used", "check the provider")
        return keys

    def _named(self, claims: Mapping[str, Any]) -> tuple[str, Role]:
        settings = self._settings
        sub = claims["sub"]
        display = next((claims[name] for name in ("preferred_username", "email") if claims.get(name)), None)
        name = f"oidc:{sub} ({display})" if isinstance(display, str) and display != sub else f"oidc:{sub}"
        name = "".join(c if c.isprintable() else "?" for c in name[:NAME_CHARS_MAX])
        held = _values(claims, settings.roles_claim)
        if held.intersection(settings.operate):
            return name, "operate"
        if held.intersection(settings.read):
            return name, "read"
        raise NoRoleError(
            name,
            f"user {name} has no role here: none of the values of claim {settings.roles_claim} gives one",
            "give the user a role at the provider, or name the value in http.oidc.read or http.oidc.operate",
        )


def _values(claims: Mapping[str, Any], place: str) -> frozenset[str]:
    """Returns the texts of a claim, which has this name, or this place below other claims."""
    found: Any = claims.get(place)
    if found is None:
        found = claims
        for name in place.split("."):
            found = found.get(name) if isinstance(found, Mapping) else None
    texts = found.split() if isinstance(found, str) else found if isinstance(found, list) else []
    return frozenset(text for text in texts if isinstance(text, str))
