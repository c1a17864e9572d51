"""Access control lists: an S3 grant equals a policy's rights, and back."""

from __future__ import annotations

import pytest

from chelonia.core.ids import ANONYMOUS
from chelonia.core.rights.policy import Action, decide
from chelonia.wire.s3 import requests
from chelonia.wire.s3.acls import AUTHENTICATED, EVERYBODY, canned, granted, grants_of, policy_of
from chelonia.wire.s3.answers import acl
from chelonia.wire.s3.errors import S3Error

JOE, EVE = "/CN=joe", "/CN=eve"


def held(policy: dict[str, str | None]) -> dict[str, str]:
    return {name: rule for name, rule in policy.items() if rule is not None}


@pytest.mark.parametrize(("name", "reads", "adds"), [("private", False, False), ("public-read", True, False),
                                                     ("public-read-write", True, True)])  # fmt: skip
def test_a_canned_list_allows_what_it_says(name: str, reads: bool, adds: bool) -> None:
    policy = held(policy_of(canned(name), JOE, {}))
    for action, allowed in ((Action.READ, reads), (Action.ADD_ENTRY, adds), (Action.MODIFY_POLICY, False)):
        assert decide(action, EVE, (), owner=JOE, policy=policy).allowed is allowed


def test_grants_come_back_as_they_were_given() -> None:
    given = ((JOE, "FULL_CONTROL"), (EVE, "FULL_CONTROL"), (EVERYBODY, "READ"))
    policy = held(policy_of(given, JOE, {}))
    assert set(grants_of(policy, JOE)) == set(given)
    assert policy_of(given, JOE, policy) == {}
    assert requests.acl(acl(JOE, grants_of(policy, JOE))) == grants_of(policy, JOE)


def test_a_list_takes_the_place_of_rules_of_persons_and_leaves_those_of_groups() -> None:
    there = {"ALL": "+read", "ANONYMOUS": "-read", EVE: "+delete", "VOMS:lab": "+read"}
    assert policy_of(canned("private"), JOE, there) == {"ALL": None, "ANONYMOUS": None, EVE: None}


def test_who_has_signed_is_not_everybody() -> None:
    given = ((EVERYBODY, "READ"), (AUTHENTICATED, "READ"), (AUTHENTICATED, "WRITE"), (JOE, "FULL_CONTROL"))
    policy = held(policy_of(given, JOE, {}))
    assert grants_of(policy, JOE) == given
    for dn, action, allowed in (
        (ANONYMOUS, Action.READ, True), (ANONYMOUS, Action.ADD_ENTRY, False), (EVE, Action.ADD_ENTRY, True)
    ):  # fmt: skip
        assert decide(action, dn, (), owner=JOE, policy=policy).allowed is allowed
    assert grants_of(held(policy_of(canned("authenticated-read"), JOE, {})), JOE)[:-1] == ((AUTHENTICATED, "READ"),)


@pytest.mark.parametrize(("field", "grantees"), [
    ('id="/CN=a, b"', ("/CN=a, b",)),
    (f'uri="{EVERYBODY}",id=/DC=x/CN=Jane Doe , id=/CN=joe', (EVERYBODY, "/DC=x/CN=Jane Doe", JOE)),
])  # fmt: skip
def test_header_fields_grant_by_grantee(field: str, grantees: tuple[str, ...]) -> None:
    assert granted({"x-amz-grant-read": field}.get) == tuple((who, "READ") for who in grantees)
    assert granted({"x-amz-acl": "private"}.get) == ()
    assert granted({}.get) is None


@pytest.mark.parametrize(("fields", "code"), [
    ({"x-amz-grant-read": "/CN=joe"}, "InvalidArgument"),
    ({"x-amz-grant-read": 'id="/CN=joe'}, "InvalidArgument"),
    ({"x-amz-grant-read": "id=bucket-owner, id=/CN=joe"}, "InvalidArgument"),
    ({"x-amz-grant-read": 'uri="http://acs.amazonaws.com/groups/s3/LogDelivery"'}, "InvalidArgument"),
    ({"x-amz-grant-read": "id=/CN=joe id=/CN=eve\udcff"}, "InvalidArgument"),
    ({"x-amz-grant-write-acp": 'emailAddress="joe@example.org"'}, "UnresolvableGrantByEmailAddress"),
    ({"x-amz-grant-write": ",".join(["id=/CN=joe"] * 101)}, "InvalidArgument"),
    ({"x-amz-grant-read": "id=/CN=joe", "x-amz-acl": "private"}, "InvalidRequest"),
])  # fmt: skip
def test_what_grants_nothing_is_refused(fields: dict[str, str], code: str) -> None:
    with pytest.raises(S3Error) as caught:
        granted(fields.get)
    assert caught.value.code == code


@pytest.mark.parametrize("grant", [("nobody", "READ"), (EVE, "EVERYTHING"), ("http://other/group", "READ")])
def test_what_is_no_grant_is_refused(grant: tuple[str, str]) -> None:
    with pytest.raises(S3Error):
        policy_of((grant,), JOE, {})
    with pytest.raises(S3Error):
        canned("public")
