"""TLS for the amqps listener, from certificate files."""

from __future__ import annotations

import ssl

from tidemark.config import TlsConfig
from tidemark.errors import ConfigError


def server_context(config: TlsConfig) -> ssl.SSLContext:
    """The context of a listener.

    Raises:
        ConfigError: a file is not what its setting says.
    """
    assert config.certificate is not None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(config.certificate, config.key)
    except (OSError, ssl.SSLError) as problem:
        key = config.key or config.certificate
        raise ConfigError(
            key="tls.certificate", problem=f"{config.certificate} with key {key} cannot be used: {problem}"
        ) from None
    if config.clients != "ignore":
        try:
            context.load_verify_locations(config.authorities)
        except (OSError, ssl.SSLError) as problem:
            raise ConfigError(
                key="tls.authorities", problem=f"{config.authorities} cannot be used: {problem}"
            ) from None
        context.verify_mode = ssl.CERT_REQUIRED if config.clients == "require" else ssl.CERT_OPTIONAL
    return context
