from __future__ import annotations

import pytest

from irregulars.errors import InputError
from irregulars.kafka.aiokafka_credentials import aiokafka_security


def test_a_login_is_translated() -> None:
    security = {"security.protocol": "sasl_plaintext", "sasl.username": "worker", "sasl.password": "secret"}
    assert aiokafka_security(security) == {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "worker",
        "sasl_plain_password": "secret",
    }


def test_tls_makes_a_context_that_checks_names() -> None:
    assert aiokafka_security({"security.protocol": "SSL"})["ssl_context"].check_hostname


@pytest.mark.parametrize(
    ("security", "said"),
    [
        ({"security.protocol": "HTTP"}, "security.protocol must be one of"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"}, "sasl.mechanism must be one of"),
        ({"security.protocol": "SASL_PLAINTEXT", "sasl.username": "worker"}, "sasl.password must be given"),
        ({"security.protocol": "SSL", "ssl.ca.location": "/nowhere.pem"}, "certificates must be readable"),
    ],
)
def test_what_cannot_be_used_is_named_and_no_secret_with_it(security: dict[str, str], said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        aiokafka_security(security | {"sasl.username": "worker"})
    assert "secret" not in str(caught.value)
