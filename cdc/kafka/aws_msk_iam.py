"""Tokens of AWS MSK with IAM (extra `msk`): signed by AWS's own library with the credentials of the machine, of the
container's role, or of a profile."""

from collections.abc import Callable, Mapping
from typing import Final

from cdc.model.errors import ConfigError

_OPTIONS: Final = ("region", "profile", "role_arn", "session_name")


def tokens(options: Mapping[str, str]) -> Callable[[], tuple[str, float]]:
    """A plug-in (cdc/kafka/tokens.py). Options: `region`, and `profile`, or `role_arn` with `session_name`, for other
    credentials than the default ones. Raises ValueError, ConfigError."""
    if unknown := sorted(set(options).difference(_OPTIONS)):
        raise ValueError(f"unknown: {', '.join(unknown)}; there are {', '.join(_OPTIONS)}")
    region = options.get("region")
    if not region:
        raise ValueError("region is missing")
    if "profile" in options and "role_arn" in options:
        raise ValueError("profile and role_arn exclude each other")
    try:
        from aws_msk_iam_sasl_signer import MSKAuthTokenProvider as Signer
    except ImportError as error:
        raise ConfigError(
            "kafka.token: aws_msk_iam needs the package aws-msk-iam-sasl-signer-python",
            "pip install 'watershed-cdc[msk]'",
        ) from error

    def token() -> tuple[str, float]:
        if "profile" in options:
            text, expires_ms = Signer.generate_auth_token_from_profile(region, options["profile"])
        elif "role_arn" in options:
            session = options.get("session_name", "watershed")
            text, expires_ms = Signer.generate_auth_token_from_role_arn(region, options["role_arn"], session)
        else:
            text, expires_ms = Signer.generate_auth_token(region)
        return text, expires_ms / 1000

    return token
